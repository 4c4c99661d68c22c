"""A slice of `make fuzz`, and that the harness sees what is wrong."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import pytest

from tests.fuzz.damage import damaged_json, damaged_record
from tests.fuzz.databases import Databases
from tests.fuzz.family import Command, Damaged, Family
from tests.fuzz.judging import judge
from tests.fuzz.playing import Summary, play, prepare
from tests.fuzz.tables import Tables

SEED, CASES, BATCHES = 7, 48, 2
FAMILIES: tuple[Family, ...] = (Databases(), Tables())


@dataclass(frozen=True)
class Prepared:
    """Sound datasets of a family, and where its cases are played."""

    family: Family
    folder: Path
    place: Path


def prepared_in(folder: Path, family: Family) -> Prepared:
    it = Prepared(family, folder / "prepared", folder / "case")
    prepare(family, it.folder, it.place)
    return it


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name)
def each(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """Every family."""
    return prepared_in(tmp_path_factory.mktemp(request.param.name), request.param)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_in(tmp_path_factory.mktemp("prepared"), Databases()).folder


@pytest.mark.timeout(200)
@pytest.mark.parametrize("batch", range(BATCHES))
def test_damaged_datasets_end_in_an_error_or_a_right_result(
    each: Prepared, batch: int, defects: list[str]
) -> None:
    summary = Summary()
    for case in range(batch * CASES // BATCHES, (batch + 1) * CASES // BATCHES):
        summary.add(play(each.family, each.folder, each.place, SEED, case))
    assert not summary.failed, "\n".join(map(str, summary.failed))
    defects.clear()  # judged case by case


def test_sound_datasets_go_through_every_command(each: Prepared) -> None:
    """Without damage nothing may end with what damage ends with."""
    ends: Counter[int | None] = Counter()
    with without_damage():
        for number in range(len(each.family.commands)):
            with mock.patch.object(type(each.family), "commands", each.family.commands[number : number + 1]):
                verdict = play(each.family, each.folder, each.place, SEED, number)
            assert not verdict.problems, verdict
            ends[verdict.exit_code] += 1
    assert set(ends) <= {0, 2, 9, 10}, ends  # refused, not done in time, findings


@contextmanager
def without_damage() -> Iterator[None]:
    nothing = (((lambda *_: "nothing"), 1),)
    with (
        mock.patch("tests.fuzz.databases._DAMAGES", nothing),
        mock.patch("tests.fuzz.tables._DAMAGES", nothing),
    ):
        yield


def sound(prepared: Path, folder: Path, rng: random.Random) -> Damaged:
    """The damaged database of the family, without damage."""
    with without_damage():
        return Databases().damage(prepared, folder, rng)


PROBLEMS = {
    "raises": (["plan"], "a defect", "lithify.datasets.slatedb.dataset.SlateDataset.planner"),
    "ends": (["status"], "OverflowError", "lithify.api.client.status"),
}


@pytest.mark.parametrize(("arguments", "said", "place"), PROBLEMS.values(), ids=PROBLEMS)
def test_a_command_that_raises_is_found(
    prepared: Path, tmp_path: Path, arguments: Sequence[str], said: str, place: str, defects: list[str]
) -> None:
    damaged = sound(prepared, tmp_path / "it", random.Random(1))
    with mock.patch(place, side_effect=OverflowError("int too large")):
        verdict = judge(Databases(), damaged, ANY, [*arguments, damaged.url], tmp_path, 0)
    assert said in "".join(verdict.problems)
    defects.clear()


ANY = Command("any", lambda *_: (), reads_only=True)


def test_a_command_that_writes_although_it_only_reads_is_found(prepared: Path, tmp_path: Path) -> None:
    damaged = sound(prepared, tmp_path / "it", random.Random(1))
    verdict = judge(Databases(), damaged, ANY, ["compact", "--full", "--take-over", damaged.url], tmp_path, 0)
    assert "wrote" in "".join(verdict.problems)


def test_a_command_that_takes_too_much_is_found(prepared: Path, tmp_path: Path) -> None:
    damaged = sound(prepared, tmp_path / "it", random.Random(1))
    with (
        mock.patch("tests.fuzz.judging.MAX_MEMORY_BYTES", -1),
        mock.patch("tests.fuzz.judging.MAX_CPU_S", 0.0),
    ):
        verdict = judge(Databases(), damaged, ANY, ["status", damaged.url], tmp_path, 0)
    assert any("of memory" in problem for problem in verdict.problems)
    assert any("of processor time" in problem for problem in verdict.problems)


def places(seed: int) -> Iterator[object]:
    rng = random.Random(seed)
    for _ in range(200):
        yield damaged_record((1, b"two", ("three", (4, 5))), rng)
        yield damaged_json(b'{"a": 1, "b": "x"}', rng)


def test_damage_is_the_same_for_the_same_seed() -> None:
    assert list(places(3)) == list(places(3))
    assert len(set(map(repr, places(3)))) > 50
