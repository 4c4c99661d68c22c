"""Compiled code for manifests and for keys of rows: `layout` has its programs' constants, `avro` finds fields
of entries, `keys` hashes keys, `warm_up` compiles ahead of time. It runs without the GIL and never calls
Python."""
