"""Compiled code for manifests: `layout` has its programs' constants, `avro` finds fields of entries,
`warm_up` compiles ahead of time. It runs without the GIL and never calls Python."""
