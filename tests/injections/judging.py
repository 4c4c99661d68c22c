"""One case: a copy of a world, one text in it, one command or all pages; and what that did.

Whatever the text says:

1. Nothing is imported, run, opened, written or connected to that it names (`trap`).
2. What a command prints is text: no control characters but ends of lines and tabs, nothing that a terminal
   would take for more (a terminal emulator reads it), no line that begins where the text says so, and not a
   megabyte of it. JSON, where it was asked for, is one document.
3. A page has no element and no attribute of it.
4. It ends as a command ends: with an exit code, and without a defect.
"""

from __future__ import annotations

import json
import random
import re
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pyte

from tests.fuzz.judging import EXIT_CODES, Hangs, _defects, _time_limit
from tests.fuzz.running import run, without_waiting
from tests.injections import texts
from tests.injections.places import Nowhere, inject, inject_name
from tests.injections.trap import Trap
from tests.injections.worlds import Copy, World, copied
from tests.web.dashboards import read

PAGES = "pages"
MAX_PRINTED_CHARS = 400_000
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u2028\u2029]")
_FORGED = re.compile(
    r"(?:^|[\n\r\x85\u2028\u2029])"
    rf'(?:{texts.WORD} (?:ERROR )?forged|lithify_{texts.WORD}|{{"level": "ERROR", "message": "{texts.WORD}")'
)
_COLUMNS, _ROWS = 120, 50
_NAMES_SHARE = 0.05
_EVERYWHERE_SHARE = 0.5
"""One object of several may be an old one that nothing reads."""
_TEXTS_IN_A_CASE = (1, 1, 2, 4, 8)
"""One may be refused before another is reached; many are shown together."""


@dataclass(slots=True)
class Verdict:
    """What one case came to."""

    case: int
    world: str
    kind: str
    where: str
    command: str
    exit_code: int | None = None
    problems: list[str] = field(default_factory=list)


def play(
    world: World, prepared: Path, place: Path, trap: Trap, seed: int, case: int, command: str = ""
) -> Verdict:
    """Play one case; the same numbers give the same. Without a `command` chance chooses one."""
    rng = random.Random(f"{world.name} {seed} {case}")
    copy = copied(world, prepared, place)
    kind = rng.choice(texts.KINDS)
    where = "; ".join(_put(copy, kind, rng, trap) for _ in range(rng.choice(_TEXTS_IN_A_CASE)))
    command = command or rng.choice((*world.commands, PAGES, PAGES))
    verdict = Verdict(case, world.name, kind, where, command)
    try:
        with _time_limit(), _defects() as defects, trap.watching():
            if command == PAGES:
                verdict.problems += _look_at(world, copy)
            else:
                verdict.problems += _carry_out(command, copy, verdict)
    except (Exception, Hangs) as error:
        verdict.problems.append("".join(traceback.format_exception(error)[-4:]))
    verdict.problems += [f"a defect: {text[:2000]}" for text in defects]
    verdict.problems += trap.sprung
    return verdict


def _put(copy: Copy, kind: str, rng: random.Random, trap: Trap) -> str:
    """Put a text of a kind somewhere; say where."""

    def make() -> str:
        return texts.text(kind, rng, trap.folder, trap.port)

    files = sorted(path for path in copy.root.rglob("*") if path.is_file())
    # As often an object of each kind as another, however many there are of it.
    kinds = sorted(set(map(_kind, files)))
    for _ in range(50):
        folder, suffix = kind_of_file = rng.choice(kinds)
        alike = [path for path in files if _kind(path) == kind_of_file]
        try:
            if rng.random() < _NAMES_SHARE:
                return inject_name(copy.root, rng, make)
            field, where = inject(rng.choice(alike), rng, make)
            if field and rng.random() < _EVERYWHERE_SHARE:
                where = f"all {where}"
                for path in alike:
                    with suppress(Nowhere):
                        inject(path, rng, make, field)
            return f"{folder}/*{suffix}: {where}"
        except (Nowhere, ValueError, TypeError, AttributeError, LookupError, OverflowError):
            continue  # the format cannot say this
    return "nowhere"


def _kind(path: Path) -> tuple[str, str]:
    """The folder that an object is in, without what differs between folders of a kind, and its ending."""
    return re.sub(r"[0-9A-Za-z-]{20,}|\d+", "#", path.parent.name), path.suffix


def _carry_out(command: str, copy: Copy, verdict: Verdict) -> Iterator[str]:
    words = [copy.names.get(word, word) for word in command.split()]
    result = run([*words, *copy.options])
    verdict.exit_code = result.exit_code
    if result.exit_code not in EXIT_CODES:
        yield f"the exit code {result.exit_code} is none of ours"
    if "Traceback (most recent call last)" in result.stdout + result.stderr:
        yield "a traceback"
    is_json = "--json" in words
    if is_json and result.stdout.strip():
        try:
            json.loads(result.stdout)
        except ValueError as error:
            yield f"no JSON: {error}"
    yield from printed_badly(result.stderr)
    yield from printed_badly(result.stdout, is_json=is_json)


def printed_badly(out: str, *, is_json: bool = False) -> Iterator[str]:
    """What is wrong with something that was printed where no terminal is."""
    odd = _CONTROLS.search(out)
    if odd is not None:
        yield f"a control character was printed: {out[max(0, odd.start() - 80) : odd.end() + 80]!r}"
    forged = _FORGED.search(out)
    if forged is not None:
        yield f"a forged line was printed: {out[max(0, forged.start() - 80) : forged.end() + 80]!r}"
    if len(out) > MAX_PRINTED_CHARS and not is_json:
        yield f"{len(out)} characters were printed"
    yield from _on_a_terminal(out[:MAX_PRINTED_CHARS])


class _Strict(pyte.Screen):
    """A terminal that notes what should never come."""

    def __init__(self) -> None:
        self.noted: list[str] = []
        super().__init__(_COLUMNS, _ROWS)
        self.noted.clear()

    def set_title(self, param: str) -> None:
        self.noted.append(f"its title became {param!r}")

    def erase_in_display(self, *args: object, **kwargs: object) -> None:
        self.noted.append("it was erased")

    def cursor_position(self, *args: object, **kwargs: object) -> None:
        self.noted.append("the cursor was moved")

    def bell(self, *args: object) -> None:
        self.noted.append("it rang")


def _on_a_terminal(out: str) -> Sequence[str]:
    screen = _Strict()
    pyte.Stream(screen).feed(out.replace("\n", "\r\n"))
    return sorted({f"of a terminal: {what}" for what in screen.noted})


def _look_at(world: World, copy: Copy) -> Iterator[str]:
    with without_waiting():
        for path, html in world.pages(copy):
            found = read(html)
            for tag, attributes in found.tags:
                if tag == texts.TAG or texts.TAG in attributes:
                    yield f"{path} has an element or attribute of the text: {tag} {attributes}"
                for name in ("href", "src", "action", "hx-get", "hx-post"):
                    if (
                        (attributes.get(name) or "/")
                        .strip()
                        .lower()
                        .startswith(("javascript:", "//", "http"))
                    ):
                        yield f"{path} leads elsewhere: {attributes[name]!r}"
            if len(html) > 20 * texts.LONG_CHARS:
                yield f"{path} has {len(html)} characters"
