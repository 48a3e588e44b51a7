"""The base of all views, how they are made of the library's own types, and how they are spelled.

A view is a msgspec Struct: msgspec writes it as JSON in half the time that ``json`` needs for a
dict, derives JSON Schema and OpenAPI components from it, and reads it back with every type checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from inspect import cleandoc
from typing import Any, Final, Self, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, UnsetType

from headwater.kernel.inputs import Encoding, to_text, to_texts

# The mark of a field that may be base64; it is left out where the field is text.
Mark = Encoding | UnsetType

_NOTHING: Final = object()


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A record as it is shown: by ``--json``, by HTTP and on the console."""

    def to_json(self) -> bytes:
        """Return the record as one line of JSON, in UTF-8."""
        try:
            line = msgspec.json.encode(self)
        except UnicodeEncodeError:
            # Half a surrogate pair: a file name or an argument that is not UTF-8.
            line = msgspec.json.encode(_legible(msgspec.to_builtins(self)))
        return msgspec.json.format(line, indent=0)

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """Return the view that a line of JSON spells; raises ValueError for anything else."""
        return msgspec.json.decode(line, type=cls)


class Mirror(View, frozen=True, kw_only=True):
    """A view of objects of the library, whose attributes its fields are; ``mirror`` makes it."""

    @classmethod
    def of(cls, *sources: object, **more: object) -> Self:
        """Return the view of objects of the mirrored types; ``more`` gives its further fields.

        What is in a list is shown by the view that the field says.
        """
        shown = copied(cls, *sources, **more)
        for field, convert in _conversions(cls).items():
            if field in shown:
                shown[field] = convert(shown[field])
        return cls(**shown)


@cache
def _conversions(view: type[Mirror]) -> dict[str, Callable[[Any], Any]]:
    """Return how fields of a view are made of those of the library, where they differ."""
    found: dict[str, Callable[[Any], Any]] = {}
    for field, hint in get_type_hints(view).items():
        if hint is str:
            found[field] = str  # a path
        elif get_origin(hint) is list:
            (item,) = get_args(hint)
            is_view = isinstance(item, type) and issubclass(item, Mirror)
            found[field] = partial(_listed, item) if is_view else list
    return found


def _listed(view: type[Mirror], items: Iterable[object]) -> list[Mirror]:
    return [one if isinstance(one, view) else view.of(one) for one in items]


def mirror(
    name: str,
    *mirrored: type,
    first: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    types: Mapping[str, Any] | None = None,
    last: Mapping[str, Any] | None = None,
) -> type[Mirror]:
    """Make a view with all fields of the mirrored types, so that a new field is shown by itself.

    ``first`` and ``last`` add fields before and after those. ``names`` says how a field is called
    in JSON, ``types`` what it is there, when that is not what the mirrored type says.
    """
    hints: dict[str, Any] = dict(first or {})
    for source in mirrored:
        hints |= get_type_hints(source)
    hints |= {**(types or {}), **(last or {})}
    called = names or {}
    fields = [(field, hint, msgspec.field(name=called.get(field))) for field, hint in hints.items()]
    said = {"__doc__": cleandoc(mirrored[0].__doc__ or "")}
    made = msgspec.defstruct(
        name, fields, bases=(Mirror,), namespace=said, frozen=True, kw_only=True
    )
    return cast(type[Mirror], made)


def copied(view: type[View], *sources: object, **more: object) -> dict[str, Any]:
    """Return the fields of a view: those that are given, and the others from the sources.

    A field that no source has is left to its default.
    """
    found = dict(more)
    for field in view.__struct_fields__:
        if field in found:
            continue
        for source in sources:
            fact = getattr(source, field, _NOTHING)
            if fact is not _NOTHING:
                found[field] = fact
                break
    return found


def text_field(name: str, data: str | bytes, mark: str = "encoding") -> dict[str, Any]:
    """Return a field of bytes for a view: its text, and its mark, which text has not."""
    text, encoding = to_text(data)
    return {name: text, mark: UNSET if encoding is None else encoding}


def headers_field(headers: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the headers of a message for a view: all of them text, or all of them base64.

    A message without headers has neither them nor their mark.
    """
    if not headers:
        return {"headers": UNSET, "headers_encoding": UNSET}
    texts, encoding = to_texts(headers)
    return {"headers": texts, "headers_encoding": UNSET if encoding is None else encoding}


def encoding_of(mark: Mark) -> Encoding | None:
    """Return the encoding that a mark stands for."""
    return None if mark is UNSET else mark


def _legible(document: Any) -> Any:
    """Replace what UTF-8 cannot hold by its escape, all over a document."""
    if isinstance(document, str):
        return document.encode("utf-8", "backslashreplace").decode()
    if isinstance(document, dict):
        return {_legible(name): _legible(fact) for name, fact in document.items()}
    if isinstance(document, list | tuple):
        return [_legible(item) for item in document]
    return document
