"""Texts that would do something where a text is taken for more than data."""

from __future__ import annotations

import random
from pathlib import Path

WORD = "TRAPPED"
"""Is in every text that must not reach a terminal or a page as more than letters."""
TAG = "trapped-tag"
MODULE = "trapped_module"
LONG_CHARS = 1_000_000
KINDS = ("code", "code", "path", "path", "host", "program", "escape", "line", "markup", "format", "long")


def text(kind: str, rng: random.Random, folder: Path, port: int) -> str:
    """Return one text of a kind. `folder` has files that nothing may open, nothing may connect to `port`."""
    return rng.choice(_TEXTS[kind](folder, port))


def _code(folder: Path, port: int) -> list[str]:
    return [
        f"{MODULE}.spring",
        f"{MODULE}:spring",
        f"{MODULE}.Spring",
        MODULE,
        "pydoc.pipepager",
        "os.system",
        "shutil:rmtree",
        "builtins.exec",
        f"cos\nsystem\n(S'touch {folder}/made'\ntR.",
    ]


def _path(folder: Path, port: int) -> list[str]:
    inside = f"{folder}/canary.json"
    up = "../" * 12
    return [
        inside,
        f"file://{inside}",
        f"file:{inside}",
        f"{up}{inside.lstrip('/')}",
        f"//{inside.lstrip('/')}",
        str(folder),
        f"{folder}/",
        f"{folder}/canary.parquet",
        f"file://localhost{folder}/canary.avro",
        f"{folder}/./x/../canary.json",
        f"s3://bucket/{up}x",
        "~/.ssh/id_rsa",
        "/dev/stdin",
        "/proc/self/environ",
        "C:\\Windows\\x",
        "a\0b",
    ]


def _host(folder: Path, port: int) -> list[str]:
    return [
        f"http://127.0.0.1:{port}/x",
        f"127.0.0.1:{port}",
        f"http://user:secret@127.0.0.1:{port}",
        f"s3://127.0.0.1:{port}/x/metadata/1.metadata.json",
        f"abfss://c@127.0.0.1:{port}/x",
        f"thrift://127.0.0.1:{port}",
        f"hdfs://127.0.0.1:{port}/x",
        f"kafka+s3://127.0.0.1:{port}/x",
        f"//127.0.0.1:{port}/x",
    ]


def _program(folder: Path, port: int) -> list[str]:
    return [
        f"touch {folder}/made",
        f"$(touch {folder}/made)",
        f"`touch {folder}/made`",
        f"; touch {folder}/made #",
        f"| touch {folder}/made",
        f"--help; touch {folder}/made",
        f"-javaagent:{folder}/canary.jar",
        "--conf=spark.jars=x",
    ]


def _escape(folder: Path, port: int) -> list[str]:
    return [
        f"\x1b]0;{WORD}\x07",
        f"\x1b]2;{WORD}\x1b\\",
        f"\x1b[2J\x1b[1;1H{WORD}",
        f"\x9b2J\x9b1;1H{WORD}",
        f"\x9d0;{WORD}\x9c",
        f"\x1b[8m{WORD}",
        f"\x1b[31m{WORD}",
        f"\x1b]8;;http://127.0.0.1:{port}/\x1b\\{WORD}\x1b]8;;\x1b\\",
        f"x\r\x1b[K{WORD}",
        f"x\b\b\b{WORD}",
        f"\u202e{WORD}\u202c",
        f"\u2066{WORD}",
        f"\u200b\ufeff{WORD}",
        f"\x00{WORD}",
        f"\x07\x0b\x0c\x7f{WORD}",
        f"\U000e0001{WORD}",
    ]


def _line(folder: Path, port: int) -> list[str]:
    return [
        f"x\n{WORD} ERROR forged",
        f"x\r\n{WORD} ERROR forged",
        f"x\r{WORD} ERROR forged",
        f"x\u2028{WORD} forged",
        f"x\u2029{WORD} forged",
        f"x\x85{WORD} forged",
        f'x\n{{"level": "ERROR", "message": "{WORD}"}}',
        f'{WORD}"}} 1\nlithify_{WORD}{{a="',
    ]


def _markup(folder: Path, port: int) -> list[str]:
    return [
        f"<{TAG} onload=x>{WORD}</{TAG}>",
        f"</script></style><{TAG}>{WORD}",
        f"\"'><{TAG} src=x>{WORD}",
        f"' {TAG}='x",
        f'" {TAG}="x',
        f"javascript:{WORD}",
        f"[bold red]{WORD}[/]",
        f"[link=http://127.0.0.1:{port}/]{WORD}[/link]",
        f"[/]{WORD}[/no]",
        f"[@click=app.bell]{WORD}[/]",
        f":boom:{WORD}",
        f"]]>{WORD}<![CDATA[",
        f"--><{TAG}>{WORD}",
    ]


def _format(folder: Path, port: int) -> list[str]:
    return [
        "{0.__class__.__mro__}{self}{}",
        "%(secret)s%s%d%n%100000000s",
        "{{7*7}}{% raise %}",
        "${jndi:ldap://127.0.0.1/x}${env:HOME}",
        "$HOME $$ ~",
        "{:>1000000000}",
        "\\u001b[31m\\x1b]0;x\\x07",
        "%00%0a%2e%2e%2f",
        "\\",
        "'; DROP TABLE iceberg_tables; --",
    ]


def _long(folder: Path, port: int) -> list[str]:
    return ["A" * LONG_CHARS, "ä" * (LONG_CHARS // 2), "a/" * (LONG_CHARS // 2), "\n" * LONG_CHARS]


_TEXTS = {
    "code": _code,
    "path": _path,
    "host": _host,
    "program": _program,
    "escape": _escape,
    "line": _line,
    "markup": _markup,
    "format": _format,
    "long": _long,
}
