"""Stored JSON documents: dataclasses, encoded and checked by pydantic.

A document's class is a plain dataclass whose annotations describe a valid document: `Annotated` types with
bounds (`annotated_types`), tuples, enums and other dataclasses. Any program may have written a document, so
it is read strictly: a float, a boolean or a text is not a whole number, and a text with half a surrogate
pair, which UTF-8 cannot encode, is not JSON. Unknown fields are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from annotated_types import Interval, Predicate

from lithify.base.errors import CorruptObject, Refused
from lithify.base.ids import MAX_ULID_MS, Ulid, parse_ulid
from lithify.base.jsonvalues import UNDECODABLE
from lithify.base.printable import printable

if TYPE_CHECKING:
    from pydantic_core import SchemaValidator, ValidationError

T = TypeVar("T")

MAX_COUNT = (1 << 62) - 1
_MAX_PROBLEM_CHARS = 300
_LOST = "\ufffd"
_HALF = re.compile("[\ud800-\udfff]")
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


def _is_name(text: str) -> bool:
    return bool(text) and "/" not in text and "\0" not in text


def _is_ulid(text: str) -> bool:
    try:
        return parse_ulid(text) == text
    except ValueError:
        return False


class _DecimalKey:
    """Marks a whole number that is the key of an object: up to 18 decimal digits, in their only form."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        digits = core_schema.str_schema(pattern="^(0|[1-9][0-9]{0,17})$")
        return core_schema.no_info_after_validator_function(int, digits)


def _is_whole(text: str) -> bool:
    return _LOST not in text


class StoredAs:
    """Marks a field that is stored in another form: `read` makes its value of one of `of`."""

    def __init__(self, of: Any, read: Callable[[Any], Any]) -> None:
        self._of = of
        self._read = read

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._read, handler.generate_schema(self._of))


class _OmitInvalid:
    """Marks entries that are left out if they are invalid."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.with_default_schema(handler(source), on_error="omit")


Count = Annotated[int, Interval(ge=0, le=MAX_COUNT)]
"""A whole number: a position, a size or a time."""
Ratio = Annotated[float, Interval(ge=0, le=1)]
Name = Annotated[str, Predicate(_is_name)]
"""The name of one object: no slash, no NUL."""
CountKey = Annotated[int, _DecimalKey()]
"""A whole number as the key of an object."""
TimeMs = Annotated[int, Interval(ge=0, le=MAX_ULID_MS)]
"""Wall-clock milliseconds that a ULID can have."""
UlidText = Annotated[Ulid, Predicate(_is_ulid)]
"""A ULID in canonical form."""
WholeText = Annotated[str, Predicate(_is_whole)]
"""A text without the character that replaces half of a surrogate pair."""
OrOmitted = Annotated[T, _OmitInvalid()]
"""An entry of a list or object that is left out if it is invalid, and hides none of the others."""


class DocumentCodec(Generic[T]):
    """The JSON encoding of the documents of one class."""

    def __init__(
        self, of: type[T], what: str = "", *, optional: Collection[str] = (), mends_text: bool = False
    ) -> None:
        """`what` names the document in errors, such as "a hold". All fields of dataclasses are required,
        whatever defaults these have, except those named in `optional`, which documents of before lack. With
        `mends_text`, half a surrogate pair is written and read as U+FFFD."""
        self._of = of
        self._as = f" as {what}" if what else ""
        self._optional = frozenset(optional)
        self._mends_text = mends_text

    def encode(self, value: T) -> bytes:
        """Encode a document. Raise `ValueError` if a text in it has half a surrogate pair."""
        from pydantic_core import to_json

        try:
            return to_json(value, inf_nan_mode="constants", fallback=_plain)
        except ValueError:
            if not self._mends_text:
                raise
            return _mended(value)

    def decode(self, data: bytes, key: str) -> T:
        """Decode the object `key`. Raise `CorruptObject` if it is not such a document."""
        from pydantic_core import ValidationError

        try:
            if self._mends_text and _HALF_PAIR.search(data):
                data = _mended(json.loads(data))
            return self._validator.validate_json(data, strict=True)  # type: ignore[no-any-return]
        except ValidationError as error:
            problem = _problem(error)
        except UNDECODABLE as error:
            problem = printable(str(error), _MAX_PROBLEM_CHARS)
        raise CorruptObject(key, f"does not decode{self._as}: {problem}")

    @cached_property
    def _validator(self) -> SchemaValidator:
        # Imported late: pydantic is slow to import, and not every process reads documents.
        from pydantic import TypeAdapter
        from pydantic_core import SchemaValidator

        return SchemaValidator(_required(TypeAdapter(self._of).core_schema, self._optional))


def _mended(value: Any) -> bytes:
    return _HALF.sub(_LOST, json.dumps(value, ensure_ascii=False, default=_plain)).encode()


def _plain(value: Any) -> Any:
    """Return the JSON value of one that encoders do not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} cannot be encoded as JSON")


def _required(schema: Any, optional: Collection[str]) -> Any:
    """Return pydantic's schema without the defaults of dataclasses' fields."""
    if isinstance(schema, list | tuple):
        return type(schema)(_required(part, optional) for part in schema)
    if not isinstance(schema, dict):
        return schema
    made = {name: _required(part, optional) for name, part in schema.items()}
    if made.get("type") == "dataclass-field" and made["name"] not in optional:
        while made["schema"]["type"] == "default":
            made["schema"] = made["schema"]["schema"]
    return made


def _problem(error: ValidationError) -> str:
    """Return the first error in one line, without the values that others wrote."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return printable(f"{where}: {first['msg']}" if where else first["msg"], _MAX_PROBLEM_CHARS)


def readable(encode: Callable[[], bytes], read: Callable[[bytes], object], where: str) -> bytes:
    """Return the result of `encode`, to be written to `where`. Raise `Refused` if `read` cannot decode it: if
    every change begins with reading the document, an unreadable one would make all changes fail, and no
    command could repair it."""
    try:
        data = encode()
        read(data)
    except (CorruptObject, *UNDECODABLE) as error:
        why = error.reason if isinstance(error, CorruptObject) else str(error)
        raise Refused(f"{where}: nothing was written, because it could not be read back: {why}") from error
    return data
