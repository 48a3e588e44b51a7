"""A scrub of a store, and its repair: which objects are checked, at which rate, what is reported.

Without I/O: both clients run the operations that ``ScrubRun`` hands them, one after the other, and
wait in between as long as it says.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, TypeAlias, get_args

from headwater.errors import AccessDenied, InvalidInput
from headwater.ick.key_scrubbing import (
    check_channel_key,
    check_ick_key,
    check_shard_key,
    ick_of,
)
from headwater.ick.layout import list_channels
from headwater.ick.scrubbing import check_channel, check_ick
from headwater.log.handles import list_streams, list_topics
from headwater.log.key_scrubbing import check_stream_key
from headwater.log.scrubbing import check_stream
from headwater.log.topic_scrubbing import check_topic, check_topic_key
from headwater.queue.handles import list_queues
from headwater.queue.key_scrubbing import check_queue_key
from headwater.queue.scrubbing import check_queue
from headwater.store.call import Operation, ScanKeys
from headwater.store.faults import Refusal
from headwater.store.key_scrubbing import NOBODYS, PREFIX, OwnedKey, check_type, owned
from headwater.store.scrubbing import (
    PAGE,
    RIGHTS,
    SCRUBBED,
    Checks,
    Defect,
    Kind,
    Repair,
    ScrubLedger,
    apply,
    read,
    shown,
    side_by_side,
)

KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
# How often one object is checked again after repairs, which may uncover more.
ROUNDS: Final = 20
# Nobody who asks for the end waits longer than this.
PAUSE_S: Final = 0.1
# How often progress is told while one object is read.
TELL_S: Final = 0.2


class ScrubProgress(NamedTuple):
    """How far a scrub is: which object is next, and what was seen before it."""

    kind: Kind
    name: str
    objects: int
    bytes: int
    defects: int


@dataclass(frozen=True, slots=True)
class ScrubReport:
    """What a scrub has seen.

    ``more`` defects were only counted. ``unsettled`` names objects that changed so fast that not
    all of their counts could be compared. ``complete`` is False when it was stopped.
    """

    objects: int
    bytes: int
    defects: tuple[Defect, ...]
    more: int
    unsettled: tuple[str, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class RepairReport:
    """What a repair did: ``repaired`` is no more, ``left`` is. A dry run leaves everything."""

    repaired: tuple[Defect, ...]
    left: tuple[Defect, ...]
    complete: bool


_Listing: TypeAlias = Callable[[], Operation[list[str]]]
_Check: TypeAlias = Callable[[str, ScrubLedger], Checks[None]]


def _scan(server: int, cursor: bytes) -> Operation[tuple[int, bytes, list[bytes]]]:
    found: tuple[int, bytes, list[bytes]] = yield ScanKeys(server, cursor, PAGE)
    return found


def _check_global(found: OwnedKey, ledger: ScrubLedger) -> Checks[None]:
    """Check a key that is of the whole store."""
    expected = _GLOBALS.get(found.name)
    if expected is None or found.part:
        ledger.found(f"key {shown(found.key)}", "an object that it belongs to", "none", NOBODYS)
        return
    yield from check_type(shown(found.key), found.key, expected, ledger)


_GLOBALS: Final = {
    **dict.fromkeys(("streams", "topics", "queues", "channels", "deleted"), "set"),
    **dict.fromkeys(("store", "timelines", "scrub"), "hash"),
}
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

    kind: Kind
    name: str
    check: Callable[[ScrubLedger], Checks[None]]


class ScrubRun:
    """A scrub, or a repair, under way: hands out operations, and is sent their replies."""

    def __init__(
        self,
        names: Collection[str],
        kinds: Collection[Kind],
        rate_mb_s: float | None,
        progress: Callable[[ScrubProgress], object] | None,
        stop: Callable[[], bool] | None,
        clock: Callable[[], float],
    ) -> None:
        unknown = set(kinds).difference(KINDS)
        if unknown:
            raise InvalidInput(f"{min(unknown)!r} is no kind of object; take {', '.join(KINDS)}")
        if rate_mb_s is not None and not rate_mb_s > 0:
            raise InvalidInput(f"rate_mb_s must be more than 0, not {rate_mb_s!r}")
        self._names, self._kinds = names, kinds or KINDS
        self._rate = None if rate_mb_s is None else rate_mb_s * 1_000_000
        self._progress, self._stop = progress, stop
        self._clock, self._began = clock, clock()
        self._told = self._began
        self._at = _Object("store", "", self._check_keys)
        self._complete = False
        self.ledger = ScrubLedger()
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
        ((seconds, _),) = yield read(seen, SCRUBBED, ("TIME",))
        fields = {
            "time": int(seconds) * 1000,
            "objects": seen.objects,
            "bytes": seen.bytes,
            "defects": len(seen.defects) + seen.more,
        }
        words = [word for field in fields.items() for word in field]
        yield apply(Repair("notes the scrub", SCRUBBED, changes=(("HSET", SCRUBBED, *words),)))

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop is not None and self._stop()

    def pauses(self) -> Iterator[float]:
        """Yield how long to wait, until the next operation keeps to the rate."""
        if self._progress is not None and self._clock() - self._told > TELL_S:
            self._tell(self._at)
        while self._rate is not None and not self.stopped:
            early = self.ledger.bytes / self._rate - (self._clock() - self._began)
            if early <= 0:
                return
            yield min(early, PAUSE_S)

    def explained(self, error: Exception, where: str) -> Exception:
        """Return the error that a user sees, for one that ended the run."""
        if isinstance(error, Refusal) and error.code == "DENIED":
            command = error.words[0].lower()
            cure = f"grant what a scrub needs: {' '.join(f'+{each}' for each in RIGHTS)}"
            return AccessDenied(where, f"the user may not run {command} on keys of the store", cure)
        return error

    def scrub_report(self) -> ScrubReport:
        """Return what was seen."""
        seen = self.ledger
        return ScrubReport(
            objects=seen.objects,
            bytes=seen.bytes,
            defects=tuple(seen.defects),
            more=seen.more,
            unsettled=tuple(seen.unsettled),
            complete=self._complete,
        )

    def repair_report(self) -> RepairReport:
        """Return what was repaired, and what is left."""
        return RepairReport(tuple(self._repaired), tuple(self.ledger.defects), self._complete)

    # ── Objects ──────────────────────────────────────────────────────────────────────────────

    def _each(self, handle: Callable[[_Object], Checks[None]]) -> Checks[None]:
        """Handle all objects that were asked for."""
        rooms: tuple[tuple[Kind, _Listing, _Check], ...] = (
            ("stream", list_streams, check_stream),
            ("topic", list_topics, check_topic),
            ("queue", list_queues, check_queue),
            ("channel", list_channels, check_channel),
        )
        for kind, listing, check in rooms:
            if kind in self._kinds:
                for name in (yield listing()):
                    yield from self._one(handle, _Object(kind, name, partial(check, name)))
        if "ick" in self._kinds:
            for name in self._names:
                yield from self._one(handle, _Object("ick", name, partial(check_ick, name)))
        if not self._names and {"store", "ick"} & set(self._kinds):
            yield from self._one(handle, _Object("store", "keys", self._check_keys))

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
            return check_ick_key(key, name, ledger)
        if "store" not in self._kinds or not key.startswith(PREFIX):
            return None
        found = owned(key)
        check = None if found is None else _KEY_CHECKS.get(found.letter)
        if found is None or check is None:
            ledger.found(f"key {shown(key)}", "an object that it belongs to", "none", NOBODYS)
            return None
        return check(found, ledger)

    def _one(self, handle: Callable[[_Object], Checks[None]], found: _Object) -> Checks[None]:
        if self._names and found.name not in self._names:
            return
        self._at = found
        self._tell(found)
        yield from handle(found)

    def _tell(self, found: _Object) -> None:
        self._told = self._clock()
        if self._progress is not None:
            seen = self.ledger
            defects = len(seen.defects) + seen.more
            self._progress(ScrubProgress(found.kind, found.name, seen.objects, seen.bytes, defects))

    def _check(self, found: _Object) -> Checks[None]:
        yield from found.check(self.ledger)

    def _repair(self, found: _Object) -> Checks[None]:
        """Repair an object until nothing more can be; what is left is noted."""
        tried: dict[Defect, None] = {}
        for _ in range(ROUNDS):
            ledger = ScrubLedger()
            yield from found.check(ledger)
            changed = False
            for defect in ledger.defects:
                if defect.repair is not None and (yield apply(defect.repair)):
                    changed = changed or defect not in tried
                    tried[defect] = None
            if not changed:
                break
        self._repaired += [defect for defect in tried if defect not in ledger.defects]
        self.ledger.add(ledger)
