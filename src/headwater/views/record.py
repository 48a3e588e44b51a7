"""The base of all views, how they are made of the library's own types, and how they are spelled.

A view is a msgspec Struct: msgspec writes it as JSON in half the time that ``json`` needs for a
dict, derives JSON Schema and OpenAPI components from it, and reads it back with every type checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from inspect import cleandoc
from types import GenericAlias, NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    NamedTuple,
    Self,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import UNSET, UnsetType

from headwater.kernel.declaring import facts_of
from headwater.kernel.failures import Cause
from headwater.kernel.headers import Headers
from headwater.kernel.inputs import Encoding, from_text, to_text, to_texts

# The mark of a field that may be base64; it is left out where the field is text.
Mark = Encoding | UnsetType

_NOTHING: Final = object()
_TEXTS: Final[tuple[Any, ...]] = (bytes, str | bytes)


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

    def facts(self) -> dict[str, Any]:
        """Return its fields, by the names of JSON."""
        facts: dict[str, Any] = msgspec.to_builtins(self)
        return facts

    @classmethod
    def from_json(cls, line: bytes) -> Self:
        """Return the view that a line of JSON spells; raises ValueError for anything else."""
        return msgspec.json.decode(line, type=cls)


class Mirror(View, frozen=True, kw_only=True):
    """A view of objects of the library, whose attributes its fields are; ``mirror`` makes it."""

    @classmethod
    def of(cls, *sources: object, **more: object) -> Self:
        """Return the view of objects of the mirrored types; ``more`` gives its further fields."""
        facts = copied(cls, *sources, **more)
        for name, show in _made_of(cls).shown.items():
            if name in facts:
                facts |= show(facts[name])
        return cls(**facts)

    @classmethod
    def mirrored(cls) -> Any:
        """Return the type of the library that this shows."""
        return _MADE[cls].mirrored

    def original(self) -> Any:
        """Return what this is the view of; raises ValueError for what is not base64."""
        made = _MADE[type(self)]
        facts = {name: _original(getattr(self, name)) for name in get_type_hints(made.mirrored)}
        for name, mark in made.marks.items():
            facts[name] = from_text(facts[name], encoding_of(getattr(self, mark)))
        return made.mirrored(**facts)


class _Made(NamedTuple):
    """How a mirror shows its fields: of which type, with which marks, and made by what."""

    mirrored: Any
    marks: dict[str, str]
    shown: dict[str, Callable[[Any], dict[str, Any]]]


_MADE: Final[dict[type[Mirror], _Made]] = {}


def _made_of(view: type[Mirror]) -> _Made:
    """Return how a mirror shows its fields; of one written by hand, its own types say it."""
    if view not in _MADE:
        shown = {name: shown_as(hint)[1] for name, hint in get_type_hints(view).items()}
        made = {name: partial(_field, name, show) for name, show in shown.items() if show}
        _MADE[view] = _Made(None, {}, dict(made))
    return _MADE[view]


def mirror(
    name: str,
    *mirrored: type,
    first: Mapping[str, Any] | None = None,
    names: Mapping[str, str] | None = None,
    types: Mapping[str, Any] | None = None,
    last: Mapping[str, Any] | None = None,
) -> type[Mirror]:
    """Make a view with all fields of the mirrored types, so that a new field is shown by itself.

    Bytes are shown as text with a mark, records in a record as their views, a cause as its text.
    ``first`` and ``last`` add fields before and after those. ``names`` says how a field is called
    in JSON, ``types`` what it is there, when that is not what the mirrored type says.
    """
    hints: dict[str, Any] = dict(first or {})
    for source in mirrored:
        hints |= facts_of(source)
    hints |= {**(types or {}), **(last or {})}
    may_lack = getattr(mirrored[0], "__optional_keys__", ())
    texts = sum(hint in _TEXTS for hint in hints.values())
    made = _Made(mirrored[0], {}, {})
    fields: list[Any] = []
    kind: Any
    default: Any
    for field, hint in hints.items():
        called, default = (names or {}).get(field), msgspec.NODEFAULT
        if hint in _TEXTS:
            made.marks[field] = mark = "encoding" if texts == 1 else f"{field}_encoding"
            made.shown[field] = partial(text_field, field, mark=mark)
            fields += [(field, str, msgspec.field(name=called)), (mark, Mark, UNSET)]
            continue
        if hint is Headers:
            made.shown[field] = headers_field
            kind = dict[str, str] | UnsetType
            fields += [(field, kind, UNSET), (f"{field}_encoding", Mark, UNSET)]
            continue
        kind, show = shown_as(hint)
        if show is not None:
            made.shown[field] = partial(_field, field, show)
        if field in may_lack:
            kind, default = kind | UnsetType, UNSET
        fields.append((field, kind, msgspec.field(name=called, default=default)))
    said = {"__doc__": cleandoc(mirrored[0].__doc__ or "")}
    struct = msgspec.defstruct(
        name, fields, bases=(Mirror,), namespace=said, frozen=True, kw_only=True
    )
    view = cast(type[Mirror], struct)
    _MADE[view] = made
    return view


def shown_as(hint: Any) -> tuple[Any, Callable[[Any], Any] | None]:
    """Return of which type something is in a view, and what makes it; None if it stays as it is."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return shown_as(next((note for note in options if isinstance(note, type)), options[0]))
    if hint in (Cause, str):
        return str, str  # a path, where the view says so
    if origin in (list, tuple) and len({*options} - {...}) == 1:
        kind, show = shown_as(options[0])
        several = GenericAlias(list, (kind,))
        plain = list if origin is list else None
        return (hint, plain) if show is None else (several, partial(_each, show))
    if origin is dict:
        kind, show = shown_as(options[1])
        by_key = GenericAlias(dict, (options[0], kind))
        return (hint, None) if show is None else (by_key, partial(_each_value, show))
    if origin in (Union, UnionType) and NoneType in options and len(options) == 2:
        (option,) = {*options} - {NoneType}
        shown, show = shown_as(option)
        return (hint, None) if show is None else (shown | None, partial(_unless_none, show))
    if isinstance(hint, type) and issubclass(hint, View):
        return hint, partial(_viewed, hint)
    if isinstance(hint, type) and (hasattr(hint, "_fields") or issubclass(hint, msgspec.Struct)):
        view = view_of(hint)
        return view, partial(_shown, view, hint)
    return hint, None


@cache
def view_of(kind: type) -> type[Mirror]:
    """Return the view of a type of the library, as it is shown everywhere."""
    return mirror(f"{kind.__name__}View", kind)


def _shown(view: type[Mirror], kind: Any, fact: Any) -> Mirror:
    # A plain pair stands for the record that names its parts.
    return view.of(fact if not isinstance(fact, tuple) else kind(*fact))


def _viewed(view: type[View], fact: Any) -> Any:
    return view.of(fact) if issubclass(view, Mirror) and not isinstance(fact, view) else fact


def _each(show: Callable[[Any], Any], facts: Iterable[Any]) -> list[Any]:
    return [show(fact) for fact in facts]


def _each_value(show: Callable[[Any], Any], facts: Mapping[Any, Any]) -> dict[Any, Any]:
    return {key: show(fact) for key, fact in facts.items()}


def _unless_none(show: Callable[[Any], Any], fact: Any) -> Any:
    return None if fact is None else show(fact)


def _field(name: str, show: Callable[[Any], Any], fact: Any) -> dict[str, Any]:
    return {name: show(fact)}


def _original(fact: Any) -> Any:
    if isinstance(fact, list):
        return tuple(_original(item) for item in fact)
    return fact.original() if isinstance(fact, Mirror) else fact


def copied(view: type[View], *sources: object, **more: object) -> dict[str, Any]:
    """Return the fields of a view: those that are given, and the others from the sources.

    A field that no source has is left to its default.
    """
    found = dict(more)
    for field in view.__struct_fields__:
        if field in found:
            continue
        for source in sources:
            fact = _fact(source, field)
            if fact is not _NOTHING:
                found[field] = fact
                break
    return found


def _fact(source: object, name: str) -> object:
    if isinstance(source, dict):
        return source.get(name, _NOTHING)
    return getattr(source, name, _NOTHING)


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
