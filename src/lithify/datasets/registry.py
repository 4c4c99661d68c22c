"""The kinds of datasets by URL. A kind is imported when its first URL is opened.

| URL                               | kind             |
|-----------------------------------|------------------|
| `iceberg://…`                     | Iceberg table    |
| `kafka+` and a store's URL        | keyed log        |
| a store's URL                     | SlateDB database |
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lithify.base.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from lithify.config.model import Config
    from lithify.config.sections import OwnSection
    from lithify.datasets.copies import Copies
    from lithify.datasets.kind import Kind
    from lithify.datasets.options import CommandOptions, Sample
    from lithify.store.resilience.waiting import WaitPolicy


@dataclass(frozen=True, slots=True)
class Registered:
    """The description of a kind that may not be imported yet. Places are given as `module:name`."""

    noun: str
    """The name of one dataset where the system is clear: `table`."""
    plural: str
    """The name of several: `Iceberg tables`."""
    kind: str
    """The place of the kind."""
    options: str
    """The place of its command options; quick to import."""
    settings: str
    """The place of its settings section; quick to import."""
    preload: str = ""
    """The place of the function that Python workers for such datasets begin with; empty: none."""
    warm_up: str = ""
    """The place of the function that compiles everything for such datasets ahead of time; empty: none."""
    discovery: str = "lithify.datasets.discovery:folders"
    """The place of the function that finds the datasets of a pattern."""
    is_warm: str = ""
    """The place of a function that returns, from the environment variables, whether the first task on this
    machine has nothing to compile; quick to import. Empty: assumed."""
    sample: str = ""
    """The place of the function that makes a small dataset in an empty folder, for `lithify demo`; it raises
    `Refused` if a library for that is not installed. Empty: none."""
    copies: str = ""
    """The place of its mirrors and restores (`lithify.datasets.copies`). Empty: none."""
    lies_in_stores: bool = False
    """Whether its URLs are its own scheme, a `+`, and a store's URL."""

    def load(self) -> Kind[Any]:
        """Import the kind."""
        kind: Kind[Any] = _load(self.kind)
        return kind

    def find(self, pattern: str, config: Config, waiting: WaitPolicy) -> list[str]:
        """Return the URLs that match a pattern with `*`. Some may not be datasets."""
        find: Callable[[str, Config, WaitPolicy], list[str]] = _load(self.discovery)
        return find(pattern, config, waiting)

    def load_options(self) -> CommandOptions:
        """Import its command options."""
        options: CommandOptions = _load(self.options)
        return options

    def is_warmed_up(self, environ: Mapping[str, str]) -> bool:
        """Return whether the first task on this machine has nothing to compile, as far as known."""
        return not self.is_warm or bool(_load(self.is_warm)(environ))

    def make_sample(self, folder: Path) -> Sample:
        """Make a small dataset in an empty folder. Raise `Refused` if a library is not installed."""
        make: Callable[[Path], Sample] = _load(self.sample)
        return make(folder)

    def load_copies(self) -> Copies | None:
        """Import its mirrors and restores; `None` if it has none."""
        copies: Copies | None = _load(self.copies) if self.copies else None
        return copies

    def load_settings(self) -> type[OwnSection]:
        """Import its settings section."""
        section: type[OwnSection] = _load(self.settings)
        return section


_OTHERS = Registered(
    "database",
    "SlateDB databases",
    "lithify.datasets.slatedb.kind:KIND",
    "lithify.datasets.slatedb.command_options:OPTIONS",
    "lithify.datasets.slatedb.settings:SlatedbSettings",
    "lithify.datasets.slatedb.kernel.warm_up:warm_up",
    "lithify.datasets.slatedb.kernel.warm_up:warm_up",
    is_warm="lithify.datasets.slatedb.kernel.ready:is_compiled",
    sample="lithify.datasets.slatedb.sample:sample",
    copies="lithify.datasets.slatedb.mirroring.copies:COPIES",
)
"""The kind of all URLs that no other kind claims."""
_BY_SCHEME: dict[str, Registered] = {
    "iceberg": Registered(
        "table",
        "Iceberg tables",
        "lithify.datasets.iceberg.kind:KIND",
        "lithify.datasets.iceberg.command_options:OPTIONS",
        "lithify.datasets.iceberg.settings:IcebergSettings",
        "lithify.datasets.iceberg.compaction.preload:preload",
        "lithify.datasets.iceberg.kernel.warm_up:warm_up",
        "lithify.datasets.iceberg.discovery:tables",
        sample="lithify.datasets.iceberg.sample:sample",
    ),
    "kafka": Registered(
        "log",
        "keyed logs",
        "lithify.datasets.kafka.kind:KIND",
        "lithify.datasets.kafka.command_options:OPTIONS",
        "lithify.datasets.kafka.settings:KafkaSettings",
        "lithify.datasets.kafka.cleaning.warm_up:warm_up",
        "lithify.datasets.kafka.cleaning.warm_up:warm_up",
        "lithify.datasets.kafka.discovery:logs",
        "lithify.datasets.kafka.format.kernel.ready:is_compiled",
        lies_in_stores=True,
    ),
}


def registered_for(url: str) -> Registered:
    """Return the kind of the dataset at `url`. Raise `Refused` if no kind has its scheme."""
    from lithify.store.urls import SCHEMES, split_scheme

    scheme, _ = split_scheme(url)
    if scheme is None:
        _check_path(url, SCHEMES)
    if scheme is None or scheme in SCHEMES:
        return _OTHERS
    name, plus, store = scheme.partition("+")
    found = _BY_SCHEME.get(name)
    if found is None or bool(plus) != found.lies_in_stores or (plus and store not in SCHEMES):
        others = (f"{name}+…" if kind.lies_in_stores else name for name, kind in _BY_SCHEME.items())
        known = ", ".join((*SCHEMES, *others))
        raise Refused(f"{url}: the scheme {scheme!r} is not known; use a path or one of {known}")
    return found


def _check_path(url: str, stores: Sequence[str]) -> None:
    """Raise `Refused` if a path is probably a URL with a mistake: `s3//bucket`, `kafka+/folder`."""
    first, _, rest = url.partition("/")
    name, plus, scheme = first.partition("+")
    meant = ""
    if first in (*stores, *_BY_SCHEME) and rest.startswith("/"):
        meant = f"{first}:/{rest}"
    elif plus and name in _BY_SCHEME and _BY_SCHEME[name].lies_in_stores:
        remote = scheme in stores and rest.startswith("/")
        meant = f"{first}:/{rest}" if remote else f"{name}+file://{Path(url[len(name) + 1 :]).absolute()}"
    if meant:
        raise Refused(f"{url}: write {meant}, or ./{url} if it is a path")


def all_registered() -> tuple[Registered, ...]:
    """Return all kinds, SlateDB's first."""
    return (_OTHERS, *_BY_SCHEME.values())


def register(scheme: str, kind: Registered) -> None:
    """Register another kind for URLs `scheme://…`. Its options appear in commands that are created
    afterwards."""
    assert scheme not in _BY_SCHEME, f"{scheme} is registered"
    _BY_SCHEME[scheme] = kind


def config_type() -> type[Config]:
    """Return the settings type with the sections of all kinds."""
    from lithify.config.model import config_type as made_of

    return made_of(tuple(kind.load_settings() for kind in all_registered()))


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
