"""The merge kernel: compiled code that turns sorted SSTs into sorted SSTs.

Floors, from the ground up:

- `lithify.kernel` what it shares with other kinds' kernels: compilation, memory, checksums, hashes.
- `layout` the records and status codes shared with Python.
- `keys`, `varint`, `snappy`, `lz4`, `zstd_frame`, `flatbuffer` one small thing each.
- `codecs` block compression · `rows_v1` blocks of the old format · `rows` reading rows, everything
  checked · `key_hashes` hashes of keys, several at once · `blocks` writing rows · `merge` the loser tree,
  retention, the main loop.
- `libraries`, `windows`, `inputs`, `outputs`, `python_rows` the Python around it: the
  codecs' libraries, windows of input, output files, the user's functions.
- `warm_up` compiles everything ahead of time.

Compiled code runs without the interpreter's lock and never calls Python, except for codecs whose
library exports no C function.
"""
