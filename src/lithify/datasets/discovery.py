"""The datasets that a pattern names, where they are folders: `s3://bucket/tenants/*/db`.

1. The path is walked level by level. Up to the next `*` nothing is asked for. A level with a `*` is one
   listing with a delimiter for each folder so far, several at a time: a thousand of a far store are a matter
   of seconds. What comes behind the last `*` is appended unseen.
2. So what is found may be no dataset: who opens it finds out. Of ten thousand folders in one that costs ten
   listings, and nothing else.
3. A folder is listed with the options of its own place (`Config.store_options_of`).

In the path of a URL, a pattern's as well as what is found, stands quoted what cannot stand there as it is. A
path, and what a `file:` URL of no special kind names, is a path, in which nothing is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from urllib.parse import quote, unquote

from lithify.base import concurrency
from lithify.base.errors import Refused
from lithify.config.model import Config
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store, split_scheme

MAX_FOUND = 1_000_000
LISTINGS_AT_ONCE = 16
_SAFE = "/!$&'()+,:;=@~"
"""What stands in the path of a URL as it is."""


def folders(pattern: str, config: Config, waiting: WaitPolicy) -> list[str]:
    """URLs of the folders that match, in order. What stands before the URL of a store in the scheme
    (`kafka+s3://…`) stands before what is found."""
    scheme, rest = split_scheme(pattern)
    kind, plus, of_store = (scheme or "").rpartition("+")
    host, _, path = rest.removeprefix("//").partition("/")
    if of_store == "file" and host == "localhost":
        host = ""
    is_path = scheme is None or (scheme == "file" and not host)
    start = "/" if is_path else f"{scheme}://{host}/"
    read: Callable[[str], str] = str if scheme is None else unquote
    written: Callable[[str], str] = str if is_path else _quoted
    stores: dict[tuple[tuple[str, str], ...], ObjectStore] = {}

    def listed(key: str) -> Iterable[str]:
        url = start + written(key)
        options = config.store_options_of(url)
        opened_with = tuple(sorted(options.items()))
        store = stores.get(opened_with)
        if store is None:  # of two at once the first one's is kept
            opened, _ = open_store(url.removeprefix(kind + plus), options, waiting)
            store = stores.setdefault(opened_with, opened)
        return store.folder(key).folders

    names = (pattern if scheme is None else path).split("/")
    levels = [[read(part) for part in name.split("*")] for name in names if name]
    return [start + written(key) for key in _walk(listed, levels, pattern)]


def _walk(listed: Callable[[str], Iterable[str]], levels: Iterable[Sequence[str]], pattern: str) -> list[str]:
    """Keys of folders, in order. Of each level what stands around its `*`."""
    found = [""]
    for around in levels:
        if len(around) == 1:
            found = [join(key, around[0]) for key in found]
            continue
        fits = re.compile("[^/]+".join(map(re.escape, around)), re.DOTALL)
        above, found = found, []
        for below in concurrency.each_of((partial(listed, key) for key in above), LISTINGS_AT_ONCE):
            found += (f for f in below if fits.fullmatch(f.rpartition("/")[2]) and _is_text(f))
            if len(found) > MAX_FOUND:
                raise Refused(f"{pattern}: more than {MAX_FOUND} folders match; name fewer")
    return sorted(found)


def _quoted(key: str) -> str:
    return quote(key, safe=_SAFE)


def _is_text(name: str) -> bool:
    """Whether anybody could write it: on disks names are bytes."""
    return not any(0xD800 <= ord(character) < 0xE000 for character in name)
