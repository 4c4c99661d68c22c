"""Damaged datasets through the commands: each ends with a clear error or a right result.

- `damage`: what is done to bytes, to records and to JSON, from a seed.
- `family`: what a kind of dataset gives: sound datasets, damaged copies of them, the commands, and what a
  foreign reader sees.
- `running`: one command in this process, with a clock that waits for nobody and an engine without Spark.
- `judging`: what one command must not do, whatever the damage.
- `playing`: one case, and many.
- `databases`: the family of SlateDB databases.

As a program (`make fuzz`): `python -m tests.fuzz --cases 10000 --seed 1`.
"""
