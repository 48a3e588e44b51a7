"""The table of commands: from it come dispatch, authorization, COMMAND and the reference page.

A handler takes the session of the client and the words of the command, and returns the reply, a
coroutine that returns it, or a Write. It decides nothing about data: that is what the client of
Headwater does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from headwater.kernel.declaring import Scope
from headwater.serve.resp.faults import CommandRefused, WrongArguments
from headwater.serve.stream_writes import Entries

if TYPE_CHECKING:
    from headwater.serve.resp.session import RespSession

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
