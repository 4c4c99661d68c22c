"""The merge kernel: compiled code that merges sorted SSTs into sorted SSTs.

Layers, from the lowest up:

- `lithify.kernel`: compilation, memory, checksums and hashes, shared with other kinds' kernels.
- `layout`: the records and status codes shared with Python.
- `keys`, `varint`, `snappy`, `lz4`, `zstd_frame`, `flatbuffer`: one small format or task each.
- `codecs`: block compression. `rows_v1`: blocks of the old format. `rows`: reading rows, with all checks.
  `key_hashes`: hashes of several keys at once. `blocks`: writing rows. `merge`: the loser tree, retention,
  the main loop.
- `libraries`, `block_ranges`, `read_ahead`, `inputs`, `outputs`, `python_rows`: the Python around it, from
  codec libraries to the user's functions.
- `warm_up`: compiles everything ahead of time. `ready`: whether that was done.

Compiled code runs without the GIL and never calls Python, except for codecs whose library exports no C
function.
"""
