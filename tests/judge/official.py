"""The official SlateDB client as tests use it: one import for its databases, administration and
compactor. See the modules for what each does."""

from slatedb.uniffi import Error, InternalError

from tests.judge.admin import Admin, CloneSource, RunShape, TreeShape, ViewShape, shape
from tests.judge.client import (
    Database,
    Delete,
    JudgeTimeout,
    Merge,
    MergeFunction,
    OpenOptions,
    Put,
    Reader,
    Snapshot,
    Target,
    Write,
    concat,
    copy_database,
    local_path,
    open_db,
    open_reader,
)
from tests.judge.compactor import (
    CompactionReport,
    TieredSpec,
    compact_officially,
    compactor_settings,
    full_compaction,
    next_run_id,
    run_officially_until_quiet,
)

__all__ = [
    "Admin",
    "CloneSource",
    "CompactionReport",
    "Database",
    "Delete",
    "Error",
    "InternalError",
    "JudgeTimeout",
    "Merge",
    "MergeFunction",
    "OpenOptions",
    "Put",
    "Reader",
    "RunShape",
    "Snapshot",
    "Target",
    "TieredSpec",
    "TreeShape",
    "ViewShape",
    "Write",
    "compact_officially",
    "compactor_settings",
    "concat",
    "copy_database",
    "full_compaction",
    "local_path",
    "next_run_id",
    "open_db",
    "open_reader",
    "run_officially_until_quiet",
    "shape",
]
