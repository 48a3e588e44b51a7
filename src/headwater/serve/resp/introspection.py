"""Commands about the server and its commands: COMMAND, INFO, CONFIG."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any, Final

from headwater.kernel.declaring import Scope
from headwater.kernel.packaging import __version__
from headwater.serve.resp.commands import (
    RespCommand,
    Words,
    arguments_of,
    unknown_subcommand,
    wrong_arity,
)
from headwater.serve.resp.door import RespSession
from headwater.serve.resp.handshake import REDIS_VERSION
from headwater.serve.resp.replies import CommandRefused, StatusReply, Verbatim

_COMMAND_HELP: Final = (
    "COMMAND <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "(no subcommand)", "    Return details about all commands.",
    "COUNT", "    Return the total number of commands in this server.",
    "LIST", "    Return a list of all commands in this server.",
    "INFO [<command-name> ...]", "    Return details about multiple commands.",
    "DOCS [<command-name> ...]", "    Return documentation details about multiple commands.",
    "GETKEYS <full-command>", "    Return the keys from a full command.",
    "HELP", "    Print this help.",
)  # fmt: skip


class Introspection:
    """The commands that know the table of all commands."""

    def __init__(self) -> None:
        # Filled once the table is made, of which these commands are part.
        self.table: Mapping[bytes, RespCommand] = {}

    def _all(self) -> list[RespCommand]:
        return sorted(set(self.table.values()), key=lambda command: command.name)

    def command(self, _: RespSession, words: Words) -> Any:
        """COMMAND: what commands there are, and how they are written."""
        if len(words) == 1:
            return [_details(command) for command in self._all()]
        subcommand, names = words[1].upper(), words[2:]
        match subcommand:
            case b"COUNT":
                if names:
                    raise wrong_arity("command|count")
                return len(self._all())
            case b"LIST":
                return [command.name.lower() for command in self._all()]
            case b"INFO":
                found = [self._find(name) for name in names] if names else self._all()
                return [None if one is None else _details(one) for one in found]
            case b"DOCS":
                asked = [self._find(name) for name in names] if names else self._all()
                return {one.name.lower(): _docs(one) for one in asked if one is not None}
            case b"GETKEYS":
                return self._keys_of(names)
            case b"HELP":
                return [StatusReply(line) for line in _COMMAND_HELP]
            case _:
                raise unknown_subcommand(words)

    def _find(self, name: bytes) -> RespCommand | None:
        return self.table.get(name.upper())

    def _keys_of(self, words: Words) -> list[bytes]:
        if not words:
            raise wrong_arity("command|getkeys")
        command = self._find(words[0])
        if command is None:
            raise CommandRefused("Invalid command specified")
        if not command.accepts(len(words)):
            raise CommandRefused("Invalid number of arguments specified for command")
        if not command.keys:
            raise CommandRefused("The command has no key arguments")
        return list(command.names(words))

    def info(self, session: RespSession, words: Words) -> Verbatim:
        """INFO: what clients look for before they begin, and a few counts."""
        door = session.door
        sections: dict[str, dict[str, Any]] = {
            "server": {
                "redis_version": REDIS_VERSION,
                "redis_mode": "standalone",
                "headwater_version": __version__,
                "process_id": os.getpid(),
                "uptime_in_seconds": int(time.monotonic() - door.since),
            },
            "clients": {
                "connected_clients": len(door.sessions),
                "maxclients": door.limits.max_connections,
                "blocked_clients": len(door.waiting),
            },
            "persistence": {"loading": 0},
            "stats": {
                "total_connections_received": door.connections,
                "total_commands_processed": door.commands,
            },
            "replication": {"role": "master", "connected_slaves": 0},
            "cluster": {"cluster_enabled": 0},
        }
        asked = {word.decode("utf-8", "replace").lower() for word in words[1:]}
        if not asked or asked & {"all", "default", "everything"}:
            asked = set(sections)
        text = ""
        for name, lines in sections.items():
            if name in asked:
                text += f"# {name.capitalize()}\r\n"
                text += "".join(f"{key}:{value}\r\n" for key, value in lines.items()) + "\r\n"
        return Verbatim(text.removesuffix("\r\n"))

    def config(self, session: RespSession, words: Words) -> Any:
        """CONFIG GET: nothing is configured here but what clients look for."""
        subcommand = words[1].upper()
        if subcommand != b"GET":
            raise unknown_subcommand(words)
        if len(words) < 3:
            raise wrong_arity("config|get")
        known = {"maxclients": str(session.door.limits.max_connections), "databases": "1"}
        patterns = [word.decode("utf-8", "replace").lower() for word in words[2:]]
        return {
            name: value
            for name, value in known.items()
            if any(fnmatchcase(name, pattern) for pattern in patterns)
        }

    def commands(self) -> tuple[RespCommand, ...]:
        """Return the commands of this part."""
        return (
            RespCommand("COMMAND", -1, Scope.READ, 0, "server", "[subcommand [argument ...]]",
                        "COUNT, LIST, INFO, DOCS, GETKEYS; alone, all commands.", self.command),
            RespCommand("INFO", -1, Scope.READ, 0, "server", "[section ...]",
                        "Returns the version, the role and a few counts.", self.info),
            RespCommand("CONFIG", -2, Scope.READ, 0, "server", "GET parameter [parameter ...]",
                        "Returns maxclients and databases; everything else is not here.",
                        self.config),
        )  # fmt: skip


def _flags(command: RespCommand) -> frozenset[StatusReply]:
    found = {StatusReply("write" if (command.scope or 0) > Scope.READ else "readonly")}
    if not command.keys:
        found = {StatusReply("fast"), StatusReply("loading"), StatusReply("stale")}
    if command.scope is None:
        found.add(StatusReply("no_auth"))
    if command.blocking:
        found.add(StatusReply("blocking"))
    return frozenset(found)


def _details(command: RespCommand) -> list[Any]:
    """Return the ten parts that Redis 7 has of a command."""
    step = max(command.keys, 1) if command.keys else 0
    last = 0 if not command.keys else 1 if command.keys < 0 else -1
    specs = []
    if command.keys:
        search = {"type": "index", "spec": {"index": 1}}
        find = {"type": "range", "spec": {"lastkey": min(0, last - 1), "keystep": step, "limit": 0}}
        flags = frozenset({StatusReply("RO" if command.scope is Scope.READ else "RW")})
        specs.append({"flags": flags, "begin_search": search, "find_keys": find})
    return [
        command.name.lower(),
        command.arity,
        _flags(command),
        1 if command.keys else 0,
        last,
        step,
        frozenset({StatusReply(f"@{command.group}")}),
        [],
        specs,
        [],
    ]


def _docs(command: RespCommand) -> dict[str, Any]:
    made: dict[str, Any] = {
        "summary": command.summary,
        "since": __version__,
        "group": command.group,
        "complexity": "See the reference of Headwater.",
    }
    if arguments := arguments_of(command.syntax):
        made["arguments"] = arguments
    return made
