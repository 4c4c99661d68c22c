"""The datasets, stored as folders, that match a pattern such as `s3://bucket/tenants/*/db`, and the datasets
in a folder that is none.

1. The path is walked level by level. A level without `*` needs no request. A level with `*` is one listing
   with a delimiter for each folder found so far, several at a time: a thousand in a remote store take
   seconds. Path parts after the last `*` are appended without a check.
2. So a result need not be a dataset; opening it shows that. Ten thousand folders in one folder cost ten
   listings.
3. A folder is listed with its own store options (`Config.store_options_of`).

URLs, as patterns and as results, have special characters of their path quoted. Plain paths do not, and
results of a `file:` pattern without a kind are plain paths.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from urllib.parse import quote, unquote

from lithify.base import concurrency
from lithify.base.errors import Refused, StoreError
from lithify.config.model import Config
from lithify.store.keys import join, url_of
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store, split_scheme

MAX_FOUND = 1_000_000
LISTINGS_AT_ONCE = 16
_SAFE = "/!$&'()+,:;=@~"
"""Characters that are not quoted in the path of a URL."""


def folders(pattern: str, config: Config, waiting: WaitPolicy) -> list[str]:
    """Return the sorted URLs of the matching folders, with the pattern's prefix before the store's scheme, if
    any (`kafka+s3://…`)."""
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
        if store is None:  # of two threads' stores the first is kept
            opened, _ = open_store(url.removeprefix(kind + plus), options, waiting)
            store = stores.setdefault(opened_with, opened)
        return store.folder(key).folders

    names = (pattern if scheme is None else path).split("/")
    levels = [[read(part) for part in name.split("*")] for name in names if name]
    return [start + written(key) for key in _walk(listed, levels, pattern)]


_SEEN_AT_MOST = 1000
"""Objects; one page of a listing."""
_FOLDERS_SEEN = 10
_SIGNS = (
    (
        re.compile(r"(.*/)?metadata/[^/]+\.metadata\.json"),
        "{url} holds the files of an Iceberg table; open it through its catalog: "
        "iceberg://CATALOG/NAMESPACE.TABLE",
    ),
    (re.compile(r"(.*/)?[0-9]{20}\.log"), "{url} holds segments of a log; open it as kafka+{url}"),
    (re.compile(r"(.*/)manifest/[0-9]{20}\.manifest"), "there is a database at {url}"),
    (
        re.compile(r"(.*/)?mirror/[0-9]{20}\.json"),
        "{url} is a mirror of a database: `lithify inspect points` shows what `lithify restore` can restore",
    ),
)


def found_instead(store: ObjectStore, folder: str) -> str:
    """Return a sentence about the dataset of another kind, or in another place, that is in a folder where
    there is no database; empty if none is seen. Reads a few pages of listings."""
    try:
        below = islice(store.folder(folder).folders, _FOLDERS_SEEN)
        places = (
            join(folder, "mirror"),
            folder,
            join(folder, "metadata"),
            *(join(key, "metadata") for key in below),
        )
        keys = [meta.key for place in places for meta in islice(store.stream(place), _SEEN_AT_MOST)]
    except StoreError:  # the sentence is advice about an error, which counts more
        return ""
    if not keys:
        return "there is no object below it"
    for sign, sentence in _SIGNS:
        signs = [place for key in keys if (place := sign.fullmatch(_below(key, folder)))]
        if signs:
            found = min(place[1] or "" for place in signs).rstrip("/")
            return sentence.format(url=url_of(store.url, join(folder, found) if found else folder))
    return ""


def _below(key: str, folder: str) -> str:
    return key.removeprefix(f"{folder}/") if folder else key


def _walk(listed: Callable[[str], Iterable[str]], levels: Iterable[Sequence[str]], pattern: str) -> list[str]:
    """Return the sorted keys of the matching folders. Each level has the texts around its `*`."""
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
                raise Refused(
                    f"{pattern}: more than {MAX_FOUND} folders match; use a pattern that matches fewer"
                )
    return sorted(found)


def _quoted(key: str) -> str:
    return quote(key, safe=_SAFE)


def _is_text(name: str) -> bool:
    """Return whether the name is valid Unicode: on disks names are bytes."""
    return not any(0xD800 <= ord(character) < 0xE000 for character in name)
