"""Compaction by time: which chunks of a timeline need compaction, and why.

A *timeline* is a set of files, each with the interval of event time its rows cover. This package depends on
no table format, on Spark or on a store: a dataset kind lists its files as `TimelineFile` values and turns the
`Task` values of the plan into compactions.

1. `chunks`: the files are laid out over *chunks*, the calendar's hours, days, weeks, months or years in a
time zone. A file belongs to every chunk its interval meets; a chunk that shares a file with its neighbour is
marked *overlap prior* or *overlap later*. Runs of touching intervals are *spans*.
2. `state`: a chunk whose content and policy are unchanged since the last analysis is not analysed again:
empty, stable and deferred chunks are skipped, unstable ones need a task unless they have one.
3. `rules`: each other chunk gets a `ChunkVerdict`: empty, stable, compact (with a priority) or no opinion.
4. `tasks`: neighbouring chunks that share files become one candidate task; small ones are combined, large
ones are split at chunk edges.
5. `colors`: tasks that share a file must not run together. Red ones run at once; black ones wait for the
tasks they share with, and read their inputs from the timeline as it is then (`resolve`).

The whole plan is a pure function of the files, the policy, the time and the recorded states.
"""
