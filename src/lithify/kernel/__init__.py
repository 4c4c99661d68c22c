"""What compiled kernels share. Each kind's own kernel lies with the kind.

From the ground up:

- `fingerprint` where machine code is kept · `cache` compiles and keeps it · `memory` raw loads, stores and
  copies, calls of C functions.
- `crc` what checksums share · `crc32`, `crc32c`, `siphash` checksums and hashes of bytes in memory.
- `buffers` the Python around it: memory with slack, and records that point to it.

Compiled code runs without the interpreter's lock and never calls Python.
"""
