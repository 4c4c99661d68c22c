"""Compiled code that reads, filters and writes Kafka's record batches.

Modules, from the lowest level up:

- `lithify.kernel` shared with other kinds: compilation, memory, varints (`zigzag`), checksums, hashes.
- `layout` records and status codes shared with Python.
- `headers` reads, checks and writes the headers of batches · `records` reads and checks records · `retaining`
  decides about records · `rewrite` writes the kept records · `keys` hashes keys.
- `ready` checks whether everything was compiled ahead of time.

Compiled code runs without the interpreter's lock and never calls Python. Python compresses, once for each
batch, between calls.
"""
