"""`make demo`: a database, a table, a fleet and a topic, from nothing to compacted, judged by programs we did
not write.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from demo import database, fleet, table, topic
from demo.shell import say


def main() -> int:
    """Run the demonstration; the exit code tells whether every row was right."""
    parser = argparse.ArgumentParser(prog="make demo", description=__doc__)
    parser.add_argument("--keep", type=Path, help="put everything here and leave it there")
    arguments = parser.parse_args()
    if arguments.keep is not None:
        return _demonstrate(arguments.keep.absolute())
    with tempfile.TemporaryDirectory(prefix="lithify-demo-") as folder:
        return _demonstrate(Path(folder))


def _demonstrate(folder: Path) -> int:
    say("A SlateDB database\n")
    is_right = database.demonstrate(folder / "db")
    say("\n\nAn Iceberg table\n")
    is_right = table.demonstrate(folder / "lake") and is_right
    say("\n\nA fleet of databases and tables\n")
    is_right = fleet.demonstrate(folder / "fleet") and is_right
    say("\n\nA topic in a broker's bucket\n")
    is_right = topic.demonstrate(folder / "topic") and is_right
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
