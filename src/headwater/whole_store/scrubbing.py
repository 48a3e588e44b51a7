"""A scrub of a store, and its repair: which objects are checked, at which rate, what is reported.

Without I/O: both clients run the operations that ``ScrubRun`` hands them, one after the other, and
wait in between as long as it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias, get_args

from headwater.errors import AccessDenied, InvalidInput, StoreError, UnreadableNode
from headwater.ick.keys import CHANNELS
from headwater.ick.scrubbing import (
    CHANNEL_KEYS,
    SHARD_KEYS,
    check_channel,
    check_ick,
    check_ick_key,
    ick_of,
)
from headwater.log.keys import STREAMS, TOPICS
from headwater.log.scrubbing import STREAM_KEYS, TOPIC_KEYS, check_stream, check_topic
from headwater.queue.keys import QUEUES
from headwater.queue.scrubbing import QUEUE_KEYS, check_queue
from headwater.store.call import Operation, ScanKeys
from headwater.store.faults import Refusal
from headwater.store.scrubbing import (
    PAGE,
    PREFIX,
    RIGHTS,
    SCRUBBED,
    Checks,
    Defect,
    KeyRules,
    PartRule,
    Repair,
    ScrubLedger,
    ScrubPace,
    ScrubProgress,
    ScrubReport,
    StoreKind,
    Subject,
    apply,
    guarded,
    owned,
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


# Keys that are of the whole store, by their name and part.
_STORE_KEYS: Final = KeyRules(
    "an object that it belongs to",
    missing="none",
    rules=(
        PartRule("(?:streams|topics|queues|channels|deleted)", "set"),
        PartRule("(?:store|timelines|scrub|queries|history|processes)", "hash"),
        PartRule("(?:verified|alarms|archives|history:series|jobs:job:.*)", "hash"),
        PartRule("(?:processes:seen|jobs:open|jobs:over)", "zset"),
        # A ring of the history has the seconds between points, and the series.
        PartRule(r"(?:timelines:(?:walk|move):(?:now|last)|history:(?:1|10|60):\[.*)", "string"),
    ),
)
# What keys are of, by their letter.
_KEYS: Final[dict[str, tuple[StoreKind, KeyRules]]] = {
    "s": ("stream", STREAM_KEYS),
    "t": ("topic", TOPIC_KEYS),
    "q": ("queue", QUEUE_KEYS),
    "c": ("channel", CHANNEL_KEYS),
    "cs": ("channel", SHARD_KEYS),
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
        subject = Subject(SCRUBBED, seen)
        (seconds, _), found = yield subject.read(("TIME",), ("TYPE", SCRUBBED))
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
        subject = Subject(registry, self.ledger)
        replies = yield from subject.look(("SMEMBERS", registry))
        names: list[str] = []
        if replies is None:
            return names
        for name in replies[0]:
            try:
                names.append(name.decode())
            except UnicodeDecodeError:
                cure = "find out who wrote it; SREM takes it off"
                subject.found(f"key {registry}", "names in UTF-8", repr(name), cure)
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
        parts = owned(key)
        if parts is None or parts.letter not in {"", *_KEYS}:
            Subject(key, ledger).nobodys(key, _STORE_KEYS.noun, _STORE_KEYS.missing)
            return None
        if not parts.letter:
            whole = parts._replace(part=parts.name.encode() + parts.part)
            return guarded(_STORE_KEYS.check(Subject(key, ledger), whole), ledger)
        kind, rules = _KEYS[parts.letter]
        # A shard has its epoch and its number behind the name of its channel.
        name = parts.name.rsplit("/", 2)[0] if rules is SHARD_KEYS else parts.name
        ledger.kind, ledger.name = kind, name
        return guarded(rules.check(Subject(parts.owner, ledger), parts), ledger)

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
