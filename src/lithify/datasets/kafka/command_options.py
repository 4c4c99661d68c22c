"""Command-line options of keyed logs."""

from __future__ import annotations

from lithify.datasets.options import CommandOptions, Inspection, KindOption

_WORKING = frozenset({"plan", "compact", "run", "worker", "coordinator", "status"})

OPTIONS = CommandOptions(
    options=(
        KindOption(
            "output",
            _WORKING | {"gc", "submit"},
            "Logs: the folder for the output; default: next to the log, with .compacted appended to its "
            "name.",
            metavar="URL",
            setting="kafka.output",
        ),
        KindOption(
            "delete_retention",
            frozenset({"compact", "run", "coordinator"}),
            "Logs: how long tombstones are kept once nothing older is left; default: 1d.",
            metavar="DURATION",
            setting="kafka.delete_retention",
        ),
        KindOption(
            "quiet_period",
            frozenset({"compact", "run", "coordinator"}),
            "Topics in a broker's bucket: how long the broker must have written nothing before the topic is "
            "changed; default: 10s. 0s: change it even while the broker writes.",
            metavar="DURATION",
            setting="kafka.quiet_period",
        ),
        KindOption(
            "copy_to",
            _WORKING | {"gc", "submit"},
            "Topics in a broker's bucket: leave the topic unchanged, and create a compacted topic of this "
            "name with the same offsets.",
            metavar="TOPIC",
            setting="kafka.copy_to",
        ),
        KindOption(
            "live",
            _WORKING,
            "Topics in a broker's bucket: compact the topic while the broker runs. Experimental: consumers "
            "may receive some records twice. Needs --broker-build.",
            type=bool,
            setting="kafka.live",
        ),
        KindOption(
            "broker_build",
            _WORKING,
            "With --live: the version of the broker's code, 0.7.0-pre.1 or later; its bucket does not "
            "record it.",
            metavar="VERSION",
            setting="kafka.broker_build",
        ),
    ),
    inspections=(
        Inspection("segments", "Show the segments of each partition of a log, and its compacted folder."),
    ),
)
