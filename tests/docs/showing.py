"""What documents show, and the database and table that it is tried on: `s3://bucket/my-db` and
`iceberg://lake/ns.events` of the documents are `my-db` and `db.events` in a folder."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.datasets.iceberg.tables import append, make_rows, new_catalog, new_table
from tests.judge.official import Put, open_db

DOCS = Path(__file__).parents[2] / "docs"
CATALOG_VARIABLE = "PYICEBERG_CATALOG__LAKE__URI"


def examples(document: str, language: str = "python") -> list[str]:
    """The blocks of code in a document."""
    text = (DOCS / document).read_text()
    return [
        re.sub(rf"(?m)^{indent}", "", code)
        for indent, code in re.findall(rf"(?ms)^( *)```{language}\n(.*?)^ *```", text)
    ]


def commands(document: str) -> list[str]:
    """The lines that a document shows to be typed into a shell."""
    text = (DOCS / document).read_text().replace("\\\n", " ")
    outside = re.sub(r"(?ms)^ *```.*?^ *```", "", text)
    return [line.partition("  #")[0].strip() for line in outside.splitlines() if line.startswith("    ")]


def here(shown: str, folder: Path) -> str:
    """Code or a command of a document, for what lies in `folder`."""
    for database in ("s3://bucket/my-db", "/data/my-db"):
        shown = shown.replace(database, str(folder / "my-db"))
    shown = shown.replace("iceberg://lake/ns.events", "iceberg://lake/db.events")
    return shown.replace("iceberg://catalog/", "iceberg://lake/")


def catalog_uri(folder: Path) -> str:
    """Where the catalog `lake` is kept."""
    return f"sqlite:///{folder}/catalog.db"


def write_datasets(folder: Path) -> Any:
    """Make the database and the table; the catalog."""
    with open_db(folder / "my-db") as database:
        for n in range(5):
            database.write_batch([Put(b"k%02d" % k, b"%d" % n) for k in range(20)])
            database.flush()
    catalog = new_catalog(folder, name="lake")
    append(new_table(catalog), make_rows(5))
    return catalog
