"""Compiled code for manifests: `layout` what it is told · `avro` finding the fields of entries. It runs
without the interpreter's lock and never calls Python."""
