"""Codecs: how values of an application become the bytes of a message, and back.

A stream, a topic or a queue that is opened with ``codec=`` takes and returns values instead of
bytes. A codec is one of these:

    "json"                  what JSON can express: dict, list, str, int, float, bool, None
    a type                  a dataclass, a Struct of msgspec, a TypedDict, list[int] and the like,
                            as JSON that is checked against the type; or a model of Pydantic
    (encode, decode)        two functions
    any object              with these two methods

A value that cannot be decoded does not stop a read: ``data`` of that one message raises
Undecodable, and its bytes are still there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeAlias, cast

import msgspec

from headwater.errors import HeadwaterError, InvalidInput, Undecodable

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # What a message holds; bytes without a codec.
    D = TypeVar("D", default=bytes)
    Value = TypeVar("Value")
else:
    from typing import TypeVar

    D = TypeVar("D")
    Value = TypeVar("Value")


class Codec(Protocol[Value]):
    """Turns values into bytes, and bytes into values."""

    def encode(self, value: Value, /) -> bytes:
        """Return the bytes of a value; whatever it raises says that the value does not fit."""

    def decode(self, data: bytes, /) -> Value:
        """Return the value of bytes; whatever it raises says that they are not such a value."""


Functions: TypeAlias = tuple[Callable[[Value], bytes], Callable[[bytes], Value]]
ValueCodec: TypeAlias = "type[Value] | Functions[Value] | Codec[Value]"
AnyCodec: TypeAlias = "Literal['json'] | ValueCodec[Value]"


class Coder(Generic[Value]):
    """A codec as the data types use it: with errors that say what does not fit, and where."""

    __slots__ = ("_decode", "_encode", "name")

    def __init__(
        self, encode: Callable[[Value], bytes], decode: Callable[[bytes], Value], name: str
    ) -> None:
        self._encode = encode
        self._decode = decode
        self.name = name

    def __repr__(self) -> str:
        return self.name

    def encode(self, value: Value) -> bytes:
        """Return the bytes of a value; raises InvalidInput when it does not fit."""
        try:
            data = self._encode(value)
        except HeadwaterError:
            raise
        except Exception as error:
            raise InvalidInput(
                f"the codec {self.name} cannot encode this {type(value).__name__}: {error}; pass a "
                "value that fits it"
            ) from error
        if not isinstance(data, bytes):
            raise InvalidInput(
                f"the codec {self.name} returned a {type(data).__name__}; its encode must return "
                "bytes"
            )
        return data

    def decode(self, data: bytes, *where: object) -> Value | Undecodable:
        """Return the value of bytes, or the error that says why there is none.

        ``where`` are the words that name the message.
        """
        try:
            return self._decode(data)
        except Exception as error:  # noqa: BLE001  whatever a codec raises says so
            what = " ".join(map(str, where))
            failed = Undecodable(what, self.name, str(error) or type(error).__name__)
            failed.__cause__ = error
            return failed


def or_raise(decoded: Value | Undecodable | None) -> Value:
    """Return what was decoded; raises the error that stands in its place."""
    if isinstance(decoded, Undecodable):
        raise decoded
    return cast("Value", decoded)


def shown(record: Any, name: str) -> str:
    """Return the repr of a message that has headers or a codec, by the name that users know.

    It shows ``data`` in place of what the codec made, and headers only where there are some.
    """
    fields = {field: getattr(record, field) for field in record.__struct_fields__}
    if "decoded" in fields:
        fields["data"] = fields.pop("decoded")
    fields["headers"] = fields.pop("headers")
    words = [f"{key}={value!r}" for key, value in fields.items() if key != "headers" or value]
    return f"{name}({', '.join(words)})"


def coder_of(codec: AnyCodec[Any] | None) -> Coder[Any] | None:
    """Return what to encode and decode by; raises InvalidInput for what is not a codec."""
    if codec is None:
        return None
    if isinstance(codec, str):
        if codec != "json":
            raise InvalidInput(f"there is no codec {codec!r}; the one with a name is 'json'")
        return Coder(_json, msgspec.json.decode, "json")
    if isinstance(codec, tuple):
        if len(codec) != 2 or not all(map(callable, codec)):
            raise InvalidInput("a codec of functions is a pair: (encode, decode)")
        return Coder(codec[0], codec[1], f"({_name(codec[0])}, {_name(codec[1])})")
    if isinstance(codec, type) and hasattr(codec, "model_validate_json"):
        return _pydantic(codec)
    if not isinstance(codec, type) and hasattr(codec, "encode") and hasattr(codec, "decode"):
        return Coder(codec.encode, codec.decode, _name(type(codec)))
    return _typed(codec)


def _json(value: Any) -> bytes:
    # msgspec writes bytes as base64, and a reader would get another value than was written.
    if isinstance(value, bytes | bytearray | memoryview):
        raise TypeError("JSON has no bytes; write them without a codec, or as text")
    return msgspec.json.encode(value)


def _typed(kind: Any) -> Coder[Any]:
    from msgspec.inspect import CustomType, type_info

    try:
        decode = msgspec.json.Decoder(kind).decode
        if isinstance(type_info(kind), CustomType):
            # Refused now, not with the first value.
            raise TypeError(
                "JSON has no such values; a dataclass or a Struct of msgspec has fields"
            )
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"{kind!r} is not a codec: {error}; pass 'json', a type that JSON can be checked "
            "against, or a pair of functions"
        ) from None
    encode_json = msgspec.json.Encoder().encode

    def encode(value: Any) -> bytes:
        data = encode_json(value)
        # A Struct or a dataclass may hold anything. What is written must be readable.
        try:
            decode(data)
        except msgspec.ValidationError:
            if isinstance(value, bytes | bytearray | memoryview):
                # In JSON they were a str, which nobody passed.
                raise TypeError(f"they are no {_name(kind)}") from None
            raise
        return data

    return Coder(encode, decode, _name(kind))


def _pydantic(model: Any) -> Coder[Any]:
    def encode(value: Any) -> bytes:
        if not isinstance(value, model):
            raise TypeError(f"it is not a {model.__name__}")
        data = bytes(value.model_dump_json(warnings=False).encode())
        # A model may be made without its checks. What is written must be readable.
        model.model_validate_json(data)
        return data

    return Coder(encode, model.model_validate_json, _name(model))


def _name(thing: Any) -> str:
    return str(getattr(thing, "__qualname__", thing))
