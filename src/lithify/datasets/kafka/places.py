"""Locations of a log and of its output.

| URL                          | is                                                       |
|------------------------------|----------------------------------------------------------|
| `kafka+file:///backup/o-0`   | a partition: a folder of segments, named after it        |
| `kafka+s3://bucket/backup`   | the partitions of a topic: a folder of such folders      |
| `…/clusters/C/topics/T`      | a topic in a broker's bucket, compacted in its place     |

Lithify's objects about a topic in a broker's bucket are in `clusters/C/lithify/T` only, so that two processes
on one topic find each other; those about its copy are in `…/T/copies/NEW`, and the copy's origin is recorded
in `clusters/C/lithify/NEW`.

For other logs the output is a folder that only Lithify writes, by default the log's URL with `.compacted`
appended. A `*` in the output's URL stands for the path of the log, so that one URL serves many logs. Neither
may be inside the other: the source is never changed, and a folder of Lithify's among partitions keeps a
broker from starting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import quote

from lithify.base.errors import Refused
from lithify.config.model import Config
from lithify.datasets.kafka.layouts.objects import ObjectTopic
from lithify.store.keys import join
from lithify.store.objects import ObjectStore
from lithify.store.resilience.waiting import WaitPolicy
from lithify.store.urls import open_store, split_scheme, with_wait

PREFIX = "kafka+"
OUTPUT_SUFFIX = ".compacted"


@dataclass(frozen=True, slots=True)
class StoreFolder:
    store: ObjectStore
    root: str
    """Its key; empty for the whole store."""
    options: Mapping[str, str]
    """Options for opening the store."""

    def has(self, other: StoreFolder) -> bool:
        """Return whether the other folder is this one or inside it."""
        is_below = not self.root or f"{other.root}/".startswith(f"{self.root}/")
        return self.store.url == other.store.url and is_below


def store_url(url: str) -> str:
    """Return the URL of a log's folder as the store knows it."""
    scheme, _ = split_scheme(url)
    return url[len(PREFIX) :] if scheme is not None and scheme.startswith(PREFIX) else url


def open_places(
    url: str, output: str | None, config: Config, waiting: WaitPolicy, copy_to: str | None = None
) -> tuple[StoreFolder, StoreFolder]:
    """Open the folder of a log and that of its output; `copy_to` names a new topic for a copy. Raise
    `Refused` for an invalid combination."""
    source = open_folder(url, config, waiting)
    if ObjectTopic.is_at(source.store, source.root):
        if output is not None:
            raise Refused(
                f"{url}: is a topic in a broker's bucket, which is compacted in place; omit --output"
            )
        cluster, _, topic = source.root.rpartition("/topics/")
        if copy_to == topic:
            raise Refused(f"{url}: {copy_to} is the topic itself; name a new one with --copy-to")
        own = join(cluster, "lithify", topic)
        return source, replace(source, root=own if copy_to is None else join(own, "copies", copy_to))
    if copy_to is not None:
        raise Refused(
            f"{url}: is not a topic in a broker's bucket; only such a topic can be copied to a new topic"
        )
    if output is not None:
        path = source.root if split_scheme(output)[0] is None else quote(source.root)
        target = open_folder(output.replace("*", path), config, waiting)
    elif not source.root:
        raise Refused(f"{url}: is a whole store, so no folder can be next to it; name a folder with --output")
    else:
        target = replace(source, root=source.root + OUTPUT_SUFFIX)
    if source.has(target):
        raise Refused(
            f"{url}: the output {target.root} lies in the log, which is never changed; name another folder"
        )
    if target.has(source):
        where = target.root or target.store.url
        raise Refused(f"{url}: lies in the output {where}, where only Lithify writes")
    return source, target


def open_folder(url: str, config: Config, waiting: WaitPolicy) -> StoreFolder:
    """Open the folder of a log or a store, with the settings for its URL."""
    options = config.store_options_of(url)
    store, root = open_store(store_url(url), options, waiting)
    return StoreFolder(store, root, with_wait(options, waiting))
