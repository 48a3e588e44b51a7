"""The table of commands: from it come dispatch, authorization, COMMAND and the reference page.

A handler takes the session of the client and the words of the command, and returns the reply, a
coroutine that returns it, or a Write. It decides nothing about data: that is what the client of
Headwater does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from headwater.kernel.declaring import Scope
from headwater.serve.batching import Entries
from headwater.serve.resp.replies import CommandRefused, StatusReply, WrongArguments

if TYPE_CHECKING:
    from headwater.serve.resp.door import RespSession

Words: TypeAlias = "Sequence[bytes]"
CommandHandler: TypeAlias = "Callable[[RespSession, Words], Any | Awaitable[Any]]"


class Write(NamedTuple):
    """Entries for a stream; their answer is the offset of the first of them."""

    stream: str
    entries: Entries
    size: int


@dataclass(frozen=True, slots=True)
class RespCommand:
    """One command.

    ``arity`` counts the name, too; a negative one is the least number. ``scope`` None needs no
    token. ``keys`` is the step from one name of an object to the next, beginning behind the name
    of the command; 0 is none, -1 only the first argument. ``blocking`` ones may wait. ``wider``
    returns the scope that some words need instead. ``look`` returns what the audit shows of the
    object that a command changes.
    """

    name: str
    arity: int
    scope: Scope | None
    keys: int
    group: str
    syntax: str
    summary: str
    handler: CommandHandler
    blocking: bool = False
    wider: Callable[[Words], Scope | None] | None = None
    look: Callable[[RespSession, Words], Awaitable[Any]] | None = None

    def accepts(self, count: int) -> bool:
        """Return whether the command may have this many words."""
        return count == self.arity if self.arity >= 0 else count >= -self.arity

    def names(self, words: Words) -> Sequence[bytes]:
        """Return the names of objects among the words."""
        if not self.keys:
            return ()
        return words[1:2] if self.keys < 0 else words[1 :: self.keys]

    def needed(self, words: Words) -> Scope | None:
        """Return the scope that these words need."""
        return self.scope if self.wider is None else self.wider(words) or self.scope


def table_of(*parts: Iterable[RespCommand]) -> dict[bytes, RespCommand]:
    """Return commands by name, in lower and in upper case, the usual spellings."""
    found: dict[bytes, RespCommand] = {}
    for part in parts:
        for command in part:
            name = command.name.encode()
            found[name] = found[name.lower()] = command
    return found


def wrong_arity(name: str) -> WrongArguments:
    """Return the refusal of a command with too many or too few words, in the words of Redis."""
    return WrongArguments(f"wrong number of arguments for '{name.lower()}' command")


def unknown_command(words: Words) -> CommandRefused:
    """Return the refusal of a command that there is not, in the words of Redis."""
    shown = ""
    for word in words[1:]:
        if len(shown) >= 128:
            break
        shown += f"'{_shown(word)[: 128 - len(shown)]}' "
    return CommandRefused(
        f"unknown command '{_shown(words[0])[:128]}', with args beginning with: {shown}"
    )


def unknown_subcommand(words: Words) -> CommandRefused:
    """Return the refusal of a subcommand that there is not, in the words of Redis."""
    name = _shown(words[0]).upper()
    return CommandRefused(f"unknown subcommand '{_shown(words[1])[:128]}'. Try {name} HELP.")


def _shown(word: bytes) -> str:
    return word[:256].decode("utf-8", "replace")


_PIECES: Final = re.compile(r"\[|\]|[^\s\[\]]+")
_NUMBERS: Final = (
    "offset", "count", "pairs", "milliseconds", "retry-ms", "expire-ms", "n", "priority", "index",
    "limit", "protover", "partitions", "up-to", "max-count", "max-bytes",
)  # fmt: skip


def arguments_of(syntax: str) -> list[dict[str, Any]]:
    """Return the arguments of a command, as clients that give hints expect them.

    Its syntax is written as the reference shows it: a word in capitals goes with what follows it,
    ``[...]`` may be left out, ``tag entry ...`` may come several times, ``FIRST|LAST`` is a choice.
    """
    pieces = _PIECES.findall(syntax.rpartition(" | ")[2])
    found, rest = _sequence(pieces)
    assert not rest, syntax
    return found


def _sequence(pieces: list[str]) -> tuple[list[dict[str, Any]], list[str]]:
    found: list[dict[str, Any]] = []
    token = None
    while pieces and pieces[0] != "]":
        piece, pieces = pieces[0], pieces[1:]
        if piece == "[":
            inner, pieces = _sequence(pieces)
            found.append(_optional(inner))
            pieces = pieces[1:]
        elif piece == "...":
            found[-1] = _flagged(found[-1], "multiple")
        elif "|" in piece:
            choices = [_argument(choice) for choice in piece.split("|")]
            found.append(_named("oneof", choices[0]["name"], token, choices))
            token = None
        elif piece.isupper() and pieces and pieces[0] not in "[]" and not pieces[0].isupper():
            token = piece
        else:
            found.append(_argument(piece, token))
            token = None
    return found, pieces


def _is_number(word: str) -> bool:
    return word in _NUMBERS or word.endswith("-ms")


def _argument(word: str, token: str | None = None) -> dict[str, Any]:
    if word.isupper():
        return {"name": word.lower(), "type": "pure-token", "token": word}
    kind = "key" if word == "key" else "integer" if _is_number(word) else "string"
    made: dict[str, Any] = {"name": word, "type": kind}
    if kind == "key":
        made["key_spec_index"] = 0
    return made if token is None else made | {"token": token}


def _named(kind: str, name: str, token: str | None, inner: list[Any]) -> dict[str, Any]:
    made: dict[str, Any] = {"name": name, "type": kind}
    if token is not None:
        made["token"] = token
    return made | {"arguments": inner}


def _optional(inner: list[dict[str, Any]]) -> dict[str, Any]:
    if len(inner) == 1:
        return _flagged(inner[0], "optional")
    several = StatusReply("multiple") in inner[-1].get("flags", ())
    if several:
        inner = [*inner[:-1], {k: v for k, v in inner[-1].items() if k != "flags"}]
    block = _named("block", inner[0]["name"], None, inner)
    return _flagged(_flagged(block, "multiple") if several else block, "optional")


def _flagged(argument: dict[str, Any], flag: str) -> dict[str, Any]:
    return argument | {"flags": [*argument.get("flags", ()), StatusReply(flag)]}
