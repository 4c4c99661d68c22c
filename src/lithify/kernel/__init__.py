"""Shared parts of the compiled kernels. Each kind's own kernel is in the kind's package.

From the lowest layer up:

- `fingerprint`: the folder of machine code. `cache`: compiles and caches it. `memory`: raw loads, stores and
  copies, calls of C functions.
- `crc`: shared parts of checksums. `crc32`, `crc32c`, `siphash`: checksums and hashes of bytes in memory.
- `buffers`: memory with slack, and records that point to it, for the Python side.

Compiled code runs without the GIL and never calls Python.
"""
