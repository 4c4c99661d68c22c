"""The command options, inspections and metric names of SlateDB databases."""

from __future__ import annotations

from lithify.datasets.options import CommandOptions, Inspection, KindOption

OPTIONS = CommandOptions(
    options=(
        KindOption(
            "segment",
            frozenset({"plan", "compact", "submit"}),
            "Only this segment, by its prefix in hexadecimal.",
            metavar="HEX",
        ),
        KindOption(
            "scheduler_option",
            frozenset({"plan", "compact", "run", "coordinator", "status"}),
            "Set an option of the size-tiered scheduler, by SlateDB's name: min_compaction_sources (4), "
            "max_compaction_sources (8), include_size_threshold (4.0), sorted_run_consolidation_threshold "
            "(0).",
            type=list[str],
            metavar="KEY=VALUE",
            setting="slatedb.scheduler_options",
        ),
        KindOption(
            "merge_operator",
            frozenset({"compact", "run", "worker"}),
            "Your associative merge operator (key, existing or None, operand) -> value. Without it, merge "
            "rows are copied unmerged.",
            metavar="PKG.MODULE:FUNCTION",
            setting="slatedb.merge_operator",
        ),
        KindOption(
            "compaction_filter",
            frozenset({"compact"}),
            "Your row filter, which decides for each surviving row: keep, drop or modify.",
            metavar="PKG.MODULE:FUNCTION",
            setting="slatedb.compaction_filter",
        ),
        KindOption(
            "block_size",
            frozenset({"compact"}),
            "Size of a data block, such as 4KiB; default: as in the inputs.",
            metavar="SIZE",
            setting="slatedb.block_size",
        ),
        KindOption(
            "compression",
            frozenset({"compact"}),
            "none, snappy, zlib, lz4 or zstd; default: as in the newest input.",
            setting="slatedb.compression_codec",
        ),
        KindOption(
            "max_sst_size",
            frozenset({"compact"}),
            "Data in one output SST, such as 64MB; default: 256MiB.",
            metavar="SIZE",
            setting="slatedb.max_sst_size",
        ),
        KindOption(
            "l0",
            frozenset({"submit"}),
            "Merge this L0 view; `all` for every one. May be repeated.",
            type=list[str],
            metavar="VIEW",
        ),
        KindOption(
            "run",
            frozenset({"submit"}),
            "Merge this sorted run. May be repeated.",
            type=list[int],
            metavar="ID",
        ),
        KindOption(
            "wal_fences",
            frozenset({"gc"}),
            "Also delete the empty files by which a writer fences older ones. SlateDB keeps them by "
            "default, because an old writer that is still alive could continue without them.",
            type=bool,
        ),
    ),
    inspections=(
        Inspection(
            "manifest",
            "Show a manifest: its trees, runs, SSTs, checkpoints and clones.",
            options=(
                KindOption(
                    "id",
                    frozenset({"manifest"}),
                    "The version of the manifest; default: the latest.",
                    type=int,
                ),
            ),
        ),
        Inspection("compactions", "Show the ledger: the state, worker and progress of each compaction."),
        Inspection(
            "points",
            "Show the points in time that a mirror can restore.",
            url_help="URL of the mirror.",
        ),
        Inspection(
            "sst",
            "Show the descriptor, blocks and statistics of an SST.",
            url_help="URL of the SST: …/compacted/<ULID>.sst",
        ),
    ),
    # `slatedb.compactor.jobs_claimed` of SlateDB is `slatedb_compactor_jobs_claimed_total` for Prometheus.
    metric_names={
        "lithify_jobs_claimed": "slatedb_compactor_jobs_claimed",
        "lithify_jobs_reclaimed": "slatedb_compactor_jobs_reclaimed",
        "lithify_worker_last_heartbeat_ms": "slatedb_compactor_worker_last_heartbeat_ms",
        "lithify_bytes_compacted": "slatedb_compactor_bytes_compacted",
        "lithify_running_compactions": "slatedb_compactor_running_compactions",
        "lithify_files_written": "slatedb_compactor_ssts_written",
        "lithify_epoch": "slatedb_compactor_epoch",
        "lithify_last_compaction_timestamp_seconds": "slatedb_compactor_last_compaction_timestamp_sec",
        "lithify_bytes_being_compacted": "slatedb_compactor_total_bytes_being_compacted",
        "lithify_throughput_bytes_per_second": "slatedb_compactor_total_throughput_bytes_per_sec",
        "lithify_garbage_collections": "slatedb_gc_count",
        "lithify_garbage_deleted": "slatedb_gc_deleted_count",
        "lithify_garbage_versions_left": "slatedb_gc_version_count",
    },
)
