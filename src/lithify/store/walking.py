"""Listing of a folder with very many objects, by several threads, in bounded memory.

1. A folder is split into its subfolders, recursively, until there are enough parts for all threads or
   `MAX_LEVELS` is reached; its direct objects are listed then. A folder is split only if most objects of its
   first page are in subfolders, because a folder with millions of direct objects has few subfolders.
2. One of the threads streams each part (`ObjectStore.stream`) in pages, and waits while the consumer is
   slower.

The first error of a thread ends the listing and is raised in the consumer. A consumer that stops does not
wait for threads: each ends after its current request.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from itertools import islice
from queue import Empty, Full, Queue, SimpleQueue

from lithify.base.concurrency import start_thread
from lithify.store.objects import ObjectMeta, ObjectStore

MAX_THREADS = 8
MAX_LEVELS = 3
PAGE = 1_000
"""Objects handed over at once."""
_PARTS_PER_THREAD = 4
_WAIT_S = 0.1

_Page = list[ObjectMeta]


def walk(store: ObjectStore, prefix: str, threads: int = MAX_THREADS) -> Iterator[ObjectMeta]:
    """Yield all objects under the folder `prefix`, in any order."""
    parts, found = _split(store, prefix, threads * _PARTS_PER_THREAD)
    yield from found
    waiting: SimpleQueue[str] = SimpleQueue()
    for part in parts:
        waiting.put(part)
    pages: Queue[_Page | BaseException | None] = Queue(2 * threads)
    stopped = threading.Event()
    try:
        for _ in range(min(threads, len(parts))):
            start_thread(partial(_list_parts, store, waiting, pages, stopped))
        left = len(parts)
        while left:
            page = pages.get()
            if page is None:
                left -= 1
            elif isinstance(page, BaseException):
                raise page
            else:
                yield from page
    finally:
        stopped.set()


def _split(store: ObjectStore, prefix: str, enough: int) -> tuple[list[str], list[ObjectMeta]]:
    """Return folders that make up `prefix`, and the objects outside them."""
    parts, found = [prefix], list[ObjectMeta]()
    for _ in range(MAX_LEVELS):
        if len(parts) >= enough:
            break
        deeper: list[str] = []
        for part in parts:
            if _has_folders_first(store, part):
                folder = store.folder(part)
                deeper += folder.folders
                found += folder.objects
            else:
                deeper.append(part)
        if deeper == parts:
            break
        parts = deeper
    return parts, found


def _has_folders_first(store: ObjectStore, prefix: str) -> bool:
    folder = prefix.strip("/")
    begin = len(folder) + 1 if folder else 0
    first = list(islice(store.stream(prefix), PAGE))
    return bool(first) and sum("/" in meta.key[begin:] for meta in first) * 2 > len(first)


def _list_parts(
    store: ObjectStore,
    waiting: SimpleQueue[str],
    pages: Queue[_Page | BaseException | None],
    stopped: threading.Event,
) -> None:
    while not stopped.is_set():
        try:
            part = waiting.get_nowait()
        except Empty:
            return
        _list(store, part, pages, stopped)


def _list(
    store: ObjectStore,
    prefix: str,
    pages: Queue[_Page | BaseException | None],
    stopped: threading.Event,
) -> None:
    try:
        objects = iter(store.stream(prefix))
        while not stopped.is_set() and (page := list(islice(objects, PAGE))):
            _hand_over(page, pages, stopped)
        _hand_over(None, pages, stopped)
    except BaseException as error:  # raised in the consumer
        _hand_over(error, pages, stopped)


def _hand_over(
    page: _Page | BaseException | None,
    pages: Queue[_Page | BaseException | None],
    stopped: threading.Event,
) -> None:
    while not stopped.is_set():
        try:
            pages.put(page, timeout=_WAIT_S)
            return
        except Full:
            continue
