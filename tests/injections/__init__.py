"""Texts that would do something where a text is taken for more than data, in every field of every format.

- `texts`: what is put in; each is of one kind, such as the name of code, a path, a host, an escape sequence.
- `trap`: what must not be touched, and how that is noticed: a module, files, a port, programs.
- `places`: where texts lie in JSON, Avro, FlatBuffers, Parquet, text files, names of objects.
- `worlds`: sound datasets of each kind, and the commands, services and pages that meet them.
- `judging`: one case, and what it did that docs/security.md does not allow.
"""
