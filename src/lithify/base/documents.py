"""Stored JSON documents: dataclasses, encoded and checked by pydantic.

A document's class is a plain dataclass whose annotations describe a valid document: `Annotated` types with
bounds (`annotated_types`), tuples, enums and other dataclasses. Any program may have written a document, so
it is read strictly: a float, a boolean or a text is not a whole number, and a text with half a surrogate
pair, which UTF-8 cannot encode, is not JSON. Unknown fields are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from annotated_types import Interval, Predicate

from lithify.base.errors import CorruptObject
from lithify.base.ids import Ulid, parse_ulid
from lithify.base.jsonvalues import UNDECODABLE
from lithify.base.printable import printable

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

MAX_COUNT = (1 << 62) - 1
_MAX_PROBLEM_CHARS = 300
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")


def _is_name(text: str) -> bool:
    return bool(text) and "/" not in text and "\0" not in text


def _is_ulid(text: str) -> bool:
    try:
        return parse_ulid(text) == text
    except ValueError:
        return False


def _is_decimal(text: str) -> bool:
    return text.isdecimal() and len(text) <= 20 and str(int(text)) == text and int(text) <= MAX_COUNT


Count = Annotated[int, Interval(ge=0, le=MAX_COUNT)]
"""A whole number: a position, a size or a time."""
Ratio = Annotated[float, Interval(ge=0, le=1)]
Name = Annotated[str, Predicate(_is_name)]
"""The name of one object: no slash, no NUL."""
Number = Annotated[str, Predicate(_is_decimal)]
"""A `Count` as the key of an object: decimal digits, in their only form."""
UlidText = Annotated[Ulid, Predicate(_is_ulid)]
"""A ULID in canonical form."""


class DocumentCodec(Generic[T]):
    """The JSON encoding of the documents of one class."""

    def __init__(
        self, of: type[T], what: str = "", *, optional: Collection[str] = (), mends_text: bool = False
    ) -> None:
        """`what` names the document in errors, such as "a hold". All fields of dataclasses are required,
        whatever defaults these have, except those named in `optional`, which documents of before lack. With
        `mends_text`, half a surrogate pair is read as `?`."""
        self._of = of
        self._as = f" as {what}" if what else ""
        self._optional = frozenset(optional)
        self._mends_text = mends_text

    def encode(self, value: T) -> bytes:
        """Encode a document. Raise `ValueError` if a text in it has half a surrogate pair."""
        return self._adapter.dump_json(value, warnings=False)

    def decode(self, data: bytes, key: str) -> T:
        """Decode the object `key`. Raise `CorruptObject` if it is not such a document."""
        from pydantic import ValidationError

        try:
            if self._mends_text and _HALF_PAIR.search(data):
                data = encodable(json.dumps(json.loads(data), ensure_ascii=False)).encode()
            return self._adapter.validator.validate_json(data, strict=True)  # type: ignore[no-any-return]
        except ValidationError as error:
            problem = _problem(error)
        except UNDECODABLE as error:
            problem = printable(str(error), _MAX_PROBLEM_CHARS)
        raise CorruptObject(key, f"does not decode{self._as}: {problem}")

    @cached_property
    def _adapter(self) -> TypeAdapter[T]:
        # Imported late: pydantic is slow to import, and not every process reads documents.
        from pydantic import TypeAdapter
        from pydantic_core import SchemaValidator

        adapter = TypeAdapter(self._of)
        adapter.validator = SchemaValidator(_required(adapter.core_schema, self._optional))
        return adapter


def encodable(text: str) -> str:
    """Return the text with half surrogate pairs replaced by `?`, so that a document can contain it."""
    return text.encode(errors="replace").decode()


def _required(schema: Any, optional: Collection[str]) -> Any:
    """Return pydantic's schema without the defaults of dataclasses' fields."""
    if isinstance(schema, list | tuple):
        return [_required(part, optional) for part in schema]
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
