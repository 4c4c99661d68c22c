"""Building blocks of sections of the settings.

Durations are text with a unit (`"5s"`, `"1m 30s"`), sizes are bytes, or text with a unit (`"256MB"`). A
duration may also be given as whole milliseconds, under its name with the suffix `_ms`, as in SlateDB's design
documents.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from lithify.config.durations import Duration, PositiveDuration, from_milliseconds, to_milliseconds
from lithify.config.sizes import Bytes, to_size

MILLISECONDS = "_ms"


def to_text(value: object) -> str:
    """Return a text or number as text. Raise `ValueError` for other types."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str | int | float):
        return str(value)
    raise ValueError(f"must be text or a number, not {type(value).__name__}")  # the value may be a secret


def no_truth(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"must be a number, not {str(value).lower()}")
    return value


def _named(key: str) -> str:
    if not key:
        raise ValueError("its name is missing")
    return key


Text = Annotated[str, BeforeValidator(to_text)]
Texts = dict[Annotated[str, AfterValidator(_named)], Text]
"""A table that users fill."""
MAX_NUMBER = 1 << 53
"""The largest number that all programs read unchanged from TOML or JSON."""
PositiveInt = Annotated[int, BeforeValidator(no_truth), Field(ge=1, le=MAX_NUMBER)]
NaturalInt = Annotated[int, BeforeValidator(no_truth), Field(ge=0, le=MAX_NUMBER)]
_Size = Annotated[int, BeforeValidator(no_truth), BeforeValidator(to_size)]
PositiveSize = Annotated[_Size, Field(ge=1, le=MAX_NUMBER), AfterValidator(Bytes)]
NaturalSize = Annotated[_Size, Field(ge=0, le=MAX_NUMBER), AfterValidator(Bytes)]
"""Bytes."""


class Section(BaseModel):
    """A section of the settings. A duration `x` may also be given as `x_ms`, in whole milliseconds."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _take_milliseconds(cls, given: object) -> object:
        if not isinstance(given, dict):
            return given
        taken: dict[str, object] = {}
        for key, value in given.items():
            name = key.removesuffix(MILLISECONDS)
            field = cls.model_fields.get(name)
            if name == key or field is None or field.annotation is not timedelta:
                taken[key] = value
            elif name in given:
                raise ValueError(f"{name} and {key} are the same setting; give one of them")
            else:
                taken[name] = from_milliseconds(key, value)
        return taken


class OwnSection(Section):
    """A section at the top level of the settings: the service's, or that of a kind of dataset."""

    NAME: ClassVar[str]
    FORMERLY: ClassVar[Mapping[str, str]] = {}
    """Former dotted names, and the present ones within the section. Names below a former name moved with
    it."""
    FOREIGN: ClassVar[Mapping[str, str]] = {}
    """The names at the top of the settings file of the system that writes such datasets, and their names
    within the section; empty for settings that mean nothing here. Such a file is read too."""
    OF_DATASETS: ClassVar[tuple[str, ...]] = ()
    """The settings, and tables of settings, that a rule of a fleet may set. They say how a dataset is
    treated, and name no code, place or host, because other users may be able to write a fleet's rules."""
    HOOKS: ClassVar[frozenset[str]] = frozenset()
    """The settings that name a function of the user, as `package.module:function`."""


class CollectionSettings(Section):
    """How one kind of garbage is collected. Names and defaults are SlateDB's."""

    interval: PositiveDuration = Field(
        default=timedelta(minutes=10), description="How often garbage is collected"
    )
    min_age: Duration = Field(default=timedelta(minutes=5), description="Younger garbage is kept")
    dry_run: bool = Field(default=False, description="Only report garbage, delete nothing")

    @property
    def min_age_ms(self) -> int:
        return to_milliseconds(self.min_age)
