"""Compiled code for manifests: `layout` what it is told · `avro` finding the fields of entries · `warm_up`
compiles it ahead of time. It runs without the interpreter's lock and never calls Python."""
