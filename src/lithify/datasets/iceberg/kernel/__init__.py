"""Compiled code for manifests: `layout` has the constants of its programs, `avro` finds the fields of
entries, `warm_up` compiles it ahead of time. It runs without the GIL and never calls Python."""
