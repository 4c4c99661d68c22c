"""The record-batch kernel: compiled code that reads, filters and writes Kafka's record batches.

Floors, from the ground up:

- `lithify.kernel` what it shares with other kinds' kernels: compilation, memory, numbers of variable length
  (`zigzag`), checksums, hashes.
- `layout` the records and status codes shared with Python.
- `headers` the headers of batches: reading, checking, writing · `records` reading records, everything
  checked · `rewrite` writing what a filter keeps · `keys` hashes of keys.
- `ready` whether everything was compiled ahead of time.

Compiled code runs without the interpreter's lock and never calls Python. Compression is done by Python,
once for each batch, between calls.
"""
