"""Command-line options of keyed logs."""

from __future__ import annotations

from lithify.datasets.options import CommandOptions, Inspection, KindOption

_WORKING = frozenset({"plan", "compact", "run", "worker", "coordinator", "status"})

OPTIONS = CommandOptions(
    options=(
        KindOption(
            "output",
            _WORKING | {"gc", "submit"},
            "Of a log: folder for what is written; default: beside the log, with .compacted behind its name.",
            metavar="URL",
            setting="kafka.output",
        ),
        KindOption(
            "delete_retention",
            frozenset({"compact", "run", "coordinator"}),
            "Of a log: how long tombstones stay once nothing older is left; default: 1d.",
            metavar="DURATION",
            setting="kafka.delete_retention",
        ),
        KindOption(
            "quiet_period",
            frozenset({"compact", "run", "coordinator"}),
            "Of a topic in a broker's bucket: how long the broker must have written nothing before the "
            "topic is changed; default: 10s. 0s: whatever it writes.",
            metavar="DURATION",
            setting="kafka.quiet_period",
        ),
        KindOption(
            "copy_to",
            _WORKING | {"gc", "submit"},
            "Of a topic in a broker's bucket: leave it as it is, and make a new topic of this name, "
            "compacted, with the same offsets.",
            metavar="TOPIC",
            setting="kafka.copy_to",
        ),
        KindOption(
            "live",
            _WORKING,
            "Of a topic in a broker's bucket: compact it while the broker runs. Experimental: readers may "
            "see some rows twice. Needs --broker-build.",
            type=bool,
            setting="kafka.live",
        ),
        KindOption(
            "broker_build",
            _WORKING,
            "With --live: the version of the broker's code, 0.7.0-pre.1 at least; its bucket does not tell.",
            metavar="VERSION",
            setting="kafka.broker_build",
        ),
    ),
    inspections=(
        Inspection(
            "segments", "Show a log: the segments of every partition, and where its compacted folder is."
        ),
    ),
)
