"""Lithify as tests use it: compact a database in this process, on a small engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lithify.base import events
from lithify.base.clock import Clock, SystemClock
from lithify.base.events import Observer
from lithify.base.ids import RandomIds
from lithify.coordination.leadership import Leadership
from lithify.datasets.slatedb.dataset import SlateDataset, SlateOptions
from lithify.engine.ports import Engine
from lithify.protocol.run_summary import RunSummary
from lithify.service import one_shot
from lithify.store.objects import ObjectStore
from lithify.store.urls import open_store
from lithify.testing.engine import InlineEngine
from tests.judge.official import Admin


def dataset_at(
    url: Path | str,
    *,
    store_options: Mapping[str, str] | None = None,
    wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
    clock: Clock | None = None,
    **options: Any,
) -> SlateDataset:
    """The database at `url`. `wrap` puts a faulty or counting store in between."""
    store, root = open_store(str(url), store_options)
    return SlateDataset(
        wrap(store),
        root,
        clock if clock is not None else SystemClock(),
        RandomIds(),
        store_options=store_options,
        options=SlateOptions(**options),
    )


def compact(
    dataset: SlateDataset,
    *,
    full: bool = True,
    take_over: bool = False,
    engine: Engine | None = None,
    clock: Clock | None = None,
    observer: Observer = events.ignore,
) -> RunSummary:
    """Run Lithify once on `dataset`, merging everything unless told to plan by itself."""
    clock = clock if clock is not None else SystemClock()
    ids = RandomIds()
    return one_shot.run(
        dataset,
        engine if engine is not None else InlineEngine(),
        clock,
        ids,
        Leadership(dataset, clock, ids),
        planner=dataset.planner(full=full),
        take_over=take_over,
        observer=observer,
    )


def compact_cleanly(url: Path | str, **options: Any) -> RunSummary:
    """Merge everything in the database at `url`; nothing may fail, and the official client must be
    able to read every state file that was written."""
    dataset = dataset_at(url, **options)
    result = compact(dataset)
    assert result.failures == ()
    check_state_files(dataset, url)
    return result


def check_state_files(dataset: SlateDataset, url: Path | str) -> None:
    """The official client decodes every manifest and every compactions file there is."""
    admin = Admin(url)
    for version_id in dataset.manifest_ids():
        assert admin.read_manifest(version_id) is not None
    for version_id in dataset.ledger_ids():
        assert admin.read_compactions(version_id) is not None
