"""Which kind of dataset a URL names. Kinds are imported when the first URL of theirs is opened.

| URL                               | kind             |
|-----------------------------------|------------------|
| `iceberg://…`                     | Iceberg table    |
| `kafka+` and what a store has     | keyed log        |
| what a store has                  | SlateDB database |
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from lithify.base.errors import Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from lithify.config.model import Config
    from lithify.config.sections import OwnSection
    from lithify.datasets.kind import Kind
    from lithify.datasets.options import CommandOptions
    from lithify.store.resilience.waiting import WaitPolicy


@dataclass(frozen=True, slots=True)
class Registered:
    """A kind that need not be imported yet."""

    noun: str
    """What one is called where it is clear of what system: `table`."""
    plural: str
    """What several are called: `Iceberg tables`."""
    kind: str
    """Where the kind is, as `module:name`."""
    options: str
    """Where what commands have for it alone is, as `module:name`; quick to import."""
    settings: str
    """Where its section of the settings is, as `module:name`; quick to import."""
    preload: str = ""
    """What Python workers begin with that work on such datasets, as `module:name`; empty: nothing."""
    warm_up: str = ""
    """What compiles, ahead of time, all that any process compiles for such datasets, as `module:name`; empty:
    nothing."""
    discovery: str = "lithify.datasets.discovery:folders"
    """What finds the datasets that a pattern names, as `module:name`."""
    is_warm: str = ""
    """Tells from the environment variables whether the first task for such datasets has nothing left to
    compile here, as `module:name`; quick to import. Empty: it never has."""
    lies_in_stores: bool = False
    """Whether its URLs are its own scheme, a `+`, and the URL of a store."""

    def load(self) -> Kind[Any]:
        """The kind itself."""
        kind: Kind[Any] = _load(self.kind)
        return kind

    def find(self, pattern: str, config: Config, waiting: WaitPolicy) -> list[str]:
        """URLs of the datasets that a pattern with `*` names. Some may turn out to be none."""
        find: Callable[[str, Config, WaitPolicy], list[str]] = _load(self.discovery)
        return find(pattern, config, waiting)

    def load_options(self) -> CommandOptions:
        """What commands have for it alone."""
        options: CommandOptions = _load(self.options)
        return options

    def is_warmed_up(self, environ: Mapping[str, str]) -> bool:
        """Whether the first task on this machine has nothing to compile."""
        return not self.is_warm or bool(_load(self.is_warm)(environ))

    def load_settings(self) -> type[OwnSection]:
        """Its section of the settings."""
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
)
"""Whatever has a URL that no other kind claims."""
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
    """The kind of the dataset at `url`. `Refused` when its scheme is nobody's."""
    from lithify.store.urls import SCHEMES, split_scheme

    scheme, _ = split_scheme(url)
    if scheme is None or scheme in SCHEMES:
        return _OTHERS
    name, plus, store = scheme.partition("+")
    found = _BY_SCHEME.get(name)
    if found is None or bool(plus) != found.lies_in_stores or (plus and store not in SCHEMES):
        others = (f"{name}+…" if kind.lies_in_stores else name for name, kind in _BY_SCHEME.items())
        known = ", ".join((*SCHEMES, *others))
        raise Refused(f"{url}: the scheme {scheme!r} is not known; use a path or one of {known}")
    return found


def all_registered() -> tuple[Registered, ...]:
    """Every kind there is, that of most URLs first."""
    return (_OTHERS, *_BY_SCHEME.values())


def register(scheme: str, kind: Registered) -> None:
    """Make URLs `scheme://…` name datasets of another kind. Its options appear in commands that are made
    after that."""
    assert scheme not in _BY_SCHEME, f"{scheme} is registered"
    _BY_SCHEME[scheme] = kind


def config_type() -> type[Config]:
    """The settings of all kinds there are."""
    from lithify.config.model import config_type as made_of

    return made_of(tuple(kind.load_settings() for kind in all_registered()))


def _load(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
