"""A scrub of a store, and its repair: which objects are checked, at which rate, what is reported.

Without I/O: both clients run the operations that ``ScrubRun`` hands them, one after the other, and
wait in between as long as it says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias, get_args

from headwater.errors import AccessDenied, InvalidInput, StoreError, UnreadableNode
from headwater.ick.keys import CHANNELS
from headwater.ick.scrubbing import (
    check_channel,
    check_channel_key,
    check_ick,
    check_ick_key,
    check_shard_key,
    ick_of,
)
from headwater.log.keys import STREAMS, TOPICS
from headwater.log.scrubbing import check_stream, check_stream_key, check_topic, check_topic_key
from headwater.queue.keys import QUEUES
from headwater.queue.scrubbing import check_queue, check_queue_key
from headwater.store.call import Operation, ScanKeys
from headwater.store.faults import Refusal
from headwater.store.scrubbing import (
    NOBODYS,
    PAGE,
    PREFIX,
    RIGHTS,
    SCRUBBED,
    Checks,
    Command,
    Defect,
    OwnedKey,
    Repair,
    ScrubLedger,
    ScrubPace,
    ScrubProgress,
    ScrubReport,
    StoreKind,
    apply,
    check_type,
    guarded,
    owned,
    read,
    shown,
    side_by_side,
)

KINDS: Final[tuple[StoreKind, ...]] = get_args(StoreKind)
# How often one object is checked again after repairs, which may uncover more.
ROUNDS: Final = 20


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did: ``repaired`` is no more, ``left`` is. A dry run leaves everything."""

    repaired: tuple[Defect, ...]
    left: tuple[Defect, ...]
    complete: bool


_Check: TypeAlias = Callable[[str, ScrubLedger], Checks[None]]


def _scan(server: int, cursor: bytes) -> Operation[tuple[int, bytes, list[bytes]]]:
    found: tuple[int, bytes, list[bytes]] = yield ScanKeys(server, cursor, PAGE)
    return found


def _check_global(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check a key that is of the whole store."""
    name, part = found.name, found.part
    expected = _GLOBALS.get(name) if not part else _PARTS.get((name, part))
    if name == "history" and _RING.match(part):
        expected = "string"
    elif name == "jobs" and part.startswith(b":job:"):
        expected = "hash"
    if expected is None:
        ledger.found(f"key {shown(found.key)}", "an object that it belongs to", "none", NOBODYS)
        return
    yield from check_type(shown(found.key), found.key, expected, ledger)


_GLOBALS: Final = {
    **dict.fromkeys(("streams", "topics", "queues", "channels", "deleted"), "set"),
    **dict.fromkeys(("store", "timelines", "scrub", "queries", "history", "processes"), "hash"),
    **dict.fromkeys(("verified", "alarms", "archives"), "hash"),
}
_PARTS: Final = {
    ("processes", b":seen"): "zset",
    ("history", b":series"): "hash",
    ("jobs", b":open"): "zset",
    ("jobs", b":over"): "zset",
    **{
        ("timelines", f":{what}:{when}".encode()): "string"
        for what in ("walk", "move")
        for when in ("now", "last")
    },
}
# A ring of the history: seconds between points, and the series.
_RING: Final = re.compile(rb":(?:1|10|60):\[")
_KEY_CHECKS: Final[dict[str, Callable[[OwnedKey, ScrubLedger], Checks[None]]]] = {
    "": _check_global,
    "s": check_stream_key,
    "t": check_topic_key,
    "q": check_queue_key,
    "c": check_channel_key,
    "cs": check_shard_key,
}


class _Object(NamedTuple):
    """Something to be checked by itself."""

    kind: StoreKind
    name: str
    check: Callable[[ScrubLedger], Checks[None]]


class ScrubRun:
    """A scrub, or a repair, in progress: yields operations, and is sent their replies."""

    def __init__(
        self,
        names: Collection[str],
        kinds: Collection[StoreKind],
        rate_mb_s: float | None,
        progress: Callable[[ScrubProgress], object] | None,
        stop: Callable[[], bool] | None,
        clock: Callable[[], float],
    ) -> None:
        unknown = set(kinds).difference(KINDS)
        if unknown:
            raise InvalidInput(f"{min(unknown)!r} is not a kind of object; use {', '.join(KINDS)}")
        self._names, self._kinds = names, kinds or KINDS
        self.pace = ScrubPace(rate_mb_s, progress, stop, clock)
        self.ledger = self.pace.ledger
        self._complete = False
        self._repaired: list[Defect] = []

    # ── What a client runs ───────────────────────────────────────────────────────────────────

    def checks(self) -> Checks[None]:
        """Check all objects that were asked for."""
        yield from self._each(self._check)
        yield from self._end()

    def repairs(self, dry_run: bool) -> Checks[None]:
        """Check all objects that were asked for, and repair what can be repaired."""
        yield from self._each(self._check if dry_run else self._repair)
        yield from self._end()

    def _end(self) -> Checks[None]:
        """Note that all was looked at; of the whole store in the store itself, for the doctor."""
        self._complete = True
        if self._names or len(self._kinds) < len(KINDS):
            return
        seen = self.ledger
        (seconds, _), found = yield read(seen, SCRUBBED, ("TIME",), ("TYPE", SCRUBBED))
        if found not in (b"none", b"hash"):
            return
        fields = {
            "time": int(seconds) * 1000,
            "objects": seen.objects,
            "bytes": seen.bytes,
            "defects": len(seen.defects) + seen.more,
        }
        words = [word for field in fields.items() for word in field]
        yield apply(Repair("notes the scrub", SCRUBBED, changes=(("HSET", SCRUBBED, *words),)))

    def explained(self, error: Exception, where: str) -> Exception:
        """Return the error that a user sees, for one that ended the run."""
        if isinstance(error, Refusal) and error.code == "DENIED":
            command = error.words[0].lower()
            cure = f"grant what a scrub needs: {' '.join(f'+{each}' for each in RIGHTS)}"
            return AccessDenied(where, f"the user may not run {command} on keys of the store", cure)
        return error

    def scrub_report(self) -> ScrubReport:
        """Return what was seen."""
        return self.pace.report(complete=self._complete)

    def repair_report(self) -> RepairReport:
        """Return what was repaired, and what is left."""
        return RepairReport(tuple(self._repaired), tuple(self.ledger.defects), self._complete)

    # ── Objects ──────────────────────────────────────────────────────────────────────────────

    def _each(self, handle: Callable[[_Object], Checks[None]]) -> Checks[None]:
        """Handle all objects that were asked for."""
        rooms: tuple[tuple[StoreKind, str, _Check], ...] = (
            ("stream", STREAMS, check_stream),
            ("topic", TOPICS, check_topic),
            ("queue", QUEUES, check_queue),
            ("channel", CHANNELS, check_channel),
        )
        registered: list[_Object] = []
        for kind, registry, check in rooms:
            if kind in self._kinds:
                names = yield from self._listed(registry)
                registered += [_Object(kind, name, partial(check, name)) for name in names]
        yield from self._refuse_unknown({found.name for found in registered})
        for found in registered:
            yield from self._one(handle, found)
        if "ick" in self._kinds:
            for name in self._names:
                yield from self._one(handle, _Object("ick", name, partial(check_ick, name)))
        if not self._names and {"store", "ick"} & set(self._kinds):
            yield from self._one(handle, _Object("store", "keys", self._check_keys))

    def _refuse_unknown(self, registered: Collection[str]) -> Checks[None]:
        """Refuse names of nothing, unless a damaged registry may be why nothing has them."""
        for name in self._names:
            if name in registered or self.ledger.defects:
                continue
            seen = ScrubLedger()
            if "ick" in self._kinds:
                yield from guarded(check_ick(name, seen), seen)
            if not seen.objects:
                kinds = "object" if self._kinds is KINDS else " or ".join(self._kinds)
                raise InvalidInput(f"the store has no {kinds} {name!r}; check the name")

    def _listed(self, registry: str) -> Checks[list[str]]:
        """Return the names in a registry, sorted; one that is no text is a defect."""
        self.ledger.kind, self.ledger.name = "store", ""
        commands: tuple[Command, ...] = (("SMEMBERS", registry),)
        replies = yield read(self.ledger, registry, *commands)
        if self.ledger.wrong_types(commands, replies):
            return []
        names = []
        for name in replies[0]:
            try:
                names.append(name.decode())
            except UnicodeDecodeError:
                cure = "find out who wrote it; SREM takes it off"
                self.ledger.found(f"key {registry}", "names in UTF-8", repr(name), cure)
        return sorted(names)

    def _check_keys(self, ledger: ScrubLedger) -> Checks[None]:
        """Go through all keys of all servers: those of no object, and those of Icks."""
        server, servers, cursor = 0, 1, b"0"
        while server < servers:
            servers, cursor, keys = yield _scan(server, cursor)
            ledger.bytes += sum(map(len, keys))
            own: list[ScrubLedger] = []
            checks = [self._check_key(key, own) for key in keys]
            yield from side_by_side([check for check in checks if check is not None])
            for each in own:
                ledger.add(each)
            if cursor == b"0":
                server += 1

    def _check_key(self, key: bytes, ledgers: list[ScrubLedger]) -> Checks[None] | None:
        """Return the check of one key, with a ledger of its own; None for a key of others."""
        ledger = ScrubLedger()
        ledgers.append(ledger)
        if "ick" in self._kinds and (name := ick_of(key)) is not None:
            return guarded(check_ick_key(key, name, ledger), ledger)
        if "store" not in self._kinds or not key.startswith(PREFIX):
            return None
        found = owned(key)
        check = None if found is None else _KEY_CHECKS.get(found.letter)
        if found is None or check is None:
            ledger.found(f"key {shown(key)}", "an object that it belongs to", "none", NOBODYS)
            return None
        return guarded(check(found, ledger), ledger)

    def _one(self, handle: Callable[[_Object], Checks[None]], found: _Object) -> Checks[None]:
        if self._names and found.name not in self._names:
            return
        self.pace.begin(found.kind, found.name)
        yield from handle(found)

    def _check(self, found: _Object) -> Checks[None]:
        yield from guarded(found.check(self.ledger), self.ledger)

    def _repair(self, found: _Object) -> Checks[None]:
        """Repair an object until nothing more can be; what is left is noted."""
        tried: dict[Defect, None] = {}
        for _ in range(ROUNDS):
            ledger = ScrubLedger()
            yield from guarded(found.check(ledger), ledger)
            changed = False
            for defect in ledger.defects:
                if defect.repair is not None and (yield from self._apply(defect.repair)):
                    changed = changed or defect not in tried
                    tried[defect] = None
            if not changed:
                break
        self._repaired += [defect for defect in tried if defect not in ledger.defects]
        self.ledger.add(ledger)

    def _apply(self, repair: Repair) -> Checks[bool]:
        """Make a repair; one that damage elsewhere in the object makes fail is left."""
        try:
            done: bool = yield apply(repair)
        except (StoreError, UnreadableNode) as error:
            if type(error) in (StoreError, UnreadableNode):
                return False
            raise
        return done
