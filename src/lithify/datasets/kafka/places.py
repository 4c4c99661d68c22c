"""Where a log lies, and where what is made of it goes.

| URL                          | is                                                       |
|------------------------------|----------------------------------------------------------|
| `kafka+file:///backup/o-0`   | a partition: a folder of segments, named after it        |
| `kafka+s3://bucket/backup`   | the partitions of a topic: a folder of such folders      |
| `…/clusters/C/topics/T`      | a topic in a broker's bucket, compacted in its place     |

What Lithify keeps of a topic in a broker's bucket lies in `clusters/C/lithify/T`, and nowhere else, so that
no two work on one topic without knowing of each other; of its copy to a new topic in `…/T/copies/NEW`, and
whose copy that is in `clusters/C/lithify/NEW`. Of the others, the output is a folder of Lithify's alone.
Nobody names one: it lies beside the log, with `.compacted` behind its name. Neither may lie in the other:
what is read is never changed, and a folder of Lithify's among partitions keeps a broker from starting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

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
    """A folder of a store."""

    store: ObjectStore
    root: str
    """Its key; empty for all of the store."""
    options: Mapping[str, str]
    """With which its store is opened."""

    def has(self, other: StoreFolder) -> bool:
        """Whether the other one is this one, or lies in it."""
        is_below = not self.root or f"{other.root}/".startswith(f"{self.root}/")
        return self.store.url == other.store.url and is_below


def store_url(url: str) -> str:
    """The URL of a log's folder as a store has it."""
    scheme, _ = split_scheme(url)
    return url[len(PREFIX) :] if scheme is not None and scheme.startswith(PREFIX) else url


def open_places(
    url: str, output: str | None, config: Config, waiting: WaitPolicy, copy_to: str | None = None
) -> tuple[StoreFolder, StoreFolder]:
    """The folder of a log, and that of what is written; `copy_to` is a new topic to make of it. `Refused`
    where they do not go together."""
    source = open_folder(url, config, waiting)
    if ObjectTopic.is_at(source.store, source.root):
        if output is not None:
            raise Refused(f"{url}: is a topic in a broker's bucket, compacted in its place; it has no output")
        cluster, _, topic = source.root.rpartition("/topics/")
        if copy_to == topic:
            raise Refused(f"{url}: {copy_to} is the topic itself; name a new one with --copy-to")
        own = join(cluster, "lithify", topic)
        return source, replace(source, root=own if copy_to is None else join(own, "copies", copy_to))
    if copy_to is not None:
        raise Refused(f"{url}: is no topic in a broker's bucket; only such a one is copied to a new topic")
    if output is not None:
        target = open_folder(output, config, waiting)
    elif not source.root:
        raise Refused(f"{url}: is all of a store, and nothing is beside that; name a folder with --output")
    else:
        target = replace(source, root=source.root + OUTPUT_SUFFIX)
    if source.has(target):
        raise Refused(f"{url}: the output {target.root} lies in the log, which is never changed")
    if target.has(source):
        where = target.root or target.store.url
        raise Refused(f"{url}: lies in the output {where}, where only Lithify writes")
    return source, target


def open_folder(url: str, config: Config, waiting: WaitPolicy) -> StoreFolder:
    """The folder with this URL, of a log or of a store, as the settings for it say."""
    options = config.store_options_of(url)
    store, root = open_store(store_url(url), options, waiting)
    return StoreFolder(store, root, with_wait(options, waiting))
