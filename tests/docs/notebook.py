"""The cells of docs/howto/notebooks.md, in a session as a notebook has it:
`python -m tests.docs.notebook FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pyspark.sql import SparkSession

from tests.docs.showing import examples, here


def main(folder: Path) -> None:
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    secrets = SimpleNamespace(get=lambda scope, key: f"the {key} of {scope}")
    names: dict[str, Any] = {"spark": spark, "dbutils": SimpleNamespace(secrets=secrets)}
    for cell in examples("howto/notebooks.md"):
        # With credentials only a bucket can be opened; nothing is asked of it.
        exec(cell if "dbutils" in cell else here(cell, folder), names)
    assert spark.range(3).count() == 3, "the session is not Lithify's to stop"
    print("on Spark", spark.version)
    spark.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
