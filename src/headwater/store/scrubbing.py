"""Scrubbing: reading everything in a store, and reporting what is damaged or inconsistent.

Each data type knows what must be true of its objects. Its checks are generators of operations, so
that the caller can pause between two of them, and stop after any. They work on a store that is in
use, and raise no false alarm:

- what is compared is read by one call, as one step (``read``), and each call is short;
- a sum over more than one call can show counts that never stood together. It is reported only
  when it was read twice, and nothing of it had changed in between (``settled``).

A defect that can be repaired carries its repair: what is changed, on which condition. ``apply``
makes it in one step, or not at all when the object was changed since it was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar

from headwater.errors import InvalidInput, StoreError, UnreadableNode
from headwater.store.call import Argument, Call, Key, Operation
from headwater.store.library import lua_of
from headwater.store.many import together

T = TypeVar("T")

StoreKind: TypeAlias = Literal["store", "stream", "group", "topic", "queue", "ick", "channel"]
Kind: TypeAlias = StoreKind | Literal["archive", "timeline"]
Command: TypeAlias = tuple[Argument, ...]
# Checks of an object: operations to run, in order; each is sent what the one before it returned.
Checks: TypeAlias = Generator[Operation[Any], Any, T]

# How many rows are read by one call, so that none takes long.
PAGE: Final = 200
# How often a sum is read again until two readings agree.
LOOKS: Final = 4
# How many defects are kept; the others are only counted.
MOST_DEFECTS: Final = 10_000

# What a user who scrubs must be allowed to run, beyond what every user must be.
RIGHTS: Final = (
    *("exists", "hkeys", "hlen", "hscan", "hstrlen", "lpos", "pttl", "scan", "sismember", "type"),
)
# The record of the last scrub of the whole store.
SCRUBBED: Final = "hw:{scrub}"
EVICT: Final = "restore it from an archive or a backup, or evict it"
REPAIR: Final = "headwater repair"
# What Python raises for damaged values, or for an error in their place.
_NONSENSE: Final = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Repair:
    """One change of an object: it is made only while every reply in ``expected`` is the same.

    ``call`` is for what the object's own functions complete, whenever they are called.
    """

    what: str
    key: Key
    expected: tuple[tuple[Command, Any], ...] = ()
    changes: tuple[Command, ...] = ()
    also: tuple[Key, ...] = ()
    call: Call | None = None


@dataclass(frozen=True, slots=True)
class Defect:
    """What is wrong with an object: where, what was expected, what was found, and the way out.

    ``repair`` says what ``headwater repair`` would change; None when nothing can be repaired.
    """

    kind: Kind
    name: str
    place: str
    expected: str
    found: str
    cure: str
    repair: Repair | None = field(default=None, compare=False, repr=False)


@dataclass(slots=True)
class ScrubLedger:
    """What a scrub has seen so far.

    ``unsettled`` names objects that changed so fast that not all of their counts could be compared.
    """

    objects: int = 0
    bytes: int = 0
    defects: list[Defect] = field(default_factory=list)
    more: int = 0
    unsettled: list[str] = field(default_factory=list)
    kind: Kind = "store"
    name: str = ""
    _noted: set[Defect] = field(default_factory=set)

    def begin(self, kind: Kind, name: str) -> None:
        """Note which object is looked at from now on."""
        self.kind, self.name = kind, name
        self.objects += 1

    def found(
        self,
        place: str,
        expected: object,
        found: object,
        cure: str = "",
        repair: Repair | None = None,
    ) -> None:
        """Note a defect of the object that is looked at."""
        cure = f"{REPAIR}: {repair.what}" if repair else cure
        self._note(Defect(self.kind, self.name, place, str(expected), str(found), cure, repair))

    def _note(self, defect: Defect) -> None:
        """Note a defect; the same one, found by two keys of an object, is noted once."""
        if defect in self._noted:
            return
        if len(self.defects) >= MOST_DEFECTS:
            self.more += 1
            return
        self._noted.add(defect)
        self.defects.append(defect)

    def wrong_types(self, commands: Sequence[Command], replies: Sequence[Any]) -> bool:
        """Note each key that is of another type than the command takes; returns whether one is."""
        wrong = {
            command[1]: (command[0], reply)
            for command, reply in zip(commands, replies, strict=True)
            if isinstance(reply, Exception)
        }
        for key, (verb, reply) in wrong.items():
            self.found(
                f"key {shown(key)}",
                f"a key that {shown(verb)} can read",
                str(reply),
                "find out who wrote it; rename it, so that nothing of it is lost, and restore the "
                "object from a backup",
            )
        return bool(wrong)

    def add(self, other: ScrubLedger) -> None:
        """Add what another ledger has."""
        self.objects += other.objects
        self.bytes += other.bytes
        for defect in other.defects:
            self._note(defect)
        self.more += other.more
        self.unsettled += other.unsettled

    def leave_unsettled(self) -> None:
        """Note that the object changed too fast for some of its counts to be compared."""
        self.unsettled.append(f"{self.kind} {self.name}")


def read(
    ledger: ScrubLedger, key: Key, *commands: Command, also: tuple[Key, ...] = ()
) -> Operation[list[Any]]:
    """Run commands that only read the keys of one object, as one step; returns their replies.

    An error takes the place of a reply where a key has another type or a value another form.
    ``also`` is as in a Call.
    """
    words: list[Argument] = []
    for command in commands:
        words += [len(command), *command]
    replies: list[Any] = yield Call("hw_scrub_read", key, tuple(words), read_only=True, also=also)
    ledger.bytes += size_of(replies)
    return replies


def apply(repair: Repair) -> Operation[bool]:
    """Make a repair; returns False, with nothing changed, when the object has changed since."""
    if repair.call is not None:
        yield repair.call
        return True
    words: list[Argument] = [len(repair.expected)]
    for command, reply in repair.expected:
        words += [len(command), *command, spelled(reply)]
    for command in repair.changes:
        words += [len(command), *command]
    call = Call("hw_scrub_repair", repair.key, tuple(words), repeatable=True, also=repair.also)
    return bool((yield call))


def guarded(checks: Checks[None], ledger: ScrubLedger) -> Checks[None]:
    """Run checks; values that they cannot interpret are a defect, and do not end the scrub."""
    try:
        yield from checks
    except _NONSENSE as error:
        _report_nonsense(ledger, error)
    except (StoreError, UnreadableNode) as error:
        # Subclasses of StoreError are about the store, whatever the object.
        if type(error) not in (StoreError, UnreadableNode):
            raise
        _report_nonsense(ledger, error)


def _report_nonsense(ledger: ScrubLedger, error: Exception) -> None:
    cure = "find out who changed it; restore it from a backup, or delete it"
    ledger.found("values", "values that can be read", str(error), cure)


def side_by_side(checks: Sequence[Checks[None]]) -> Checks[None]:
    """Run short checks of different objects together, in a few round trips."""
    running: dict[int, tuple[Checks[None], Operation[Any]]] = {}
    replies: dict[int, Any] = dict.fromkeys(range(len(checks)))
    while replies:
        for place, reply in replies.items():
            try:
                running[place] = checks[place], checks[place].send(reply)
            except StopIteration:
                running.pop(place, None)
        if not running:
            return
        found = yield together([operation for _, operation in running.values()])
        replies = dict(zip(running, found, strict=True))


def spelled(reply: Any) -> bytes:
    """Format a reply as the server does when it compares it."""
    if reply is None:
        return b"-"
    if isinstance(reply, int):
        return b":%d" % reply
    if isinstance(reply, bytes):
        return b"$%d:%b" % (len(reply), reply)
    if isinstance(reply, Exception):
        return b"!"
    return b"*%d:%b" % (len(reply), b"".join(map(spelled, reply)))


def size_of(reply: Any) -> int:
    """Return how many bytes of text are in a reply."""
    if isinstance(reply, bytes):
        return len(reply)
    return sum(map(size_of, reply)) if isinstance(reply, list) else 0


class Sweep(NamedTuple):
    """One reading of all rows of an object.

    ``pages`` is a digest of every page but the last; the counters and the last page were read as
    one step. ``sums`` is what the rows add up to, ``counted`` what the counters say, ``seen`` the
    reply with that step, for the condition of a repair.
    """

    pages: int
    sums: tuple[int, ...]
    counted: tuple[int, ...]
    seen: Any

    @property
    def differences(self) -> tuple[int, ...]:
        """By how much each sum exceeds its counter."""
        return tuple(s - c for s, c in zip(self.sums, self.counted, strict=True))


def settled(ledger: ScrubLedger, sweep: Callable[[], Checks[Sweep | None]]) -> Checks[Sweep | None]:
    """Return a reading whose sums differ from the counters, unless a concurrent change explains it.

    Returns None when all agrees. Pages that were read one after the other may not have stood
    together; so a difference counts when a second reading finds the same, in the same pages. An
    object that changes all the time is noted as unsettled.
    """
    before: Sweep | None = None
    for _ in range(LOOKS):
        found = yield from sweep()
        if found is None or not any(found.differences):
            return None
        if found.pages == 0:
            return found
        if before and (found.pages, found.differences) == (before.pages, before.differences):
            return found
        before = found
    ledger.leave_unsettled()
    return None


def shown(key: object) -> str:
    """Return a key or a name as text, whatever its bytes."""
    return key.decode("utf-8", "backslashreplace") if isinstance(key, bytes) else str(key)


def number(value: bytes | None, default: int = 0) -> int | None:
    """Return a field as a number, the default when it is missing, None when it is no number."""
    if value is None or value == b"":
        return default
    try:
        return int(value)
    except ValueError:
        return None


# ── Scrub pace ────────────────────────────────────────────────────────────────────────────────────
# How a scrub of any kind is paced, stopped and reported: of a store, an archive or a farm.


# A request to stop is noticed within this time.
PAUSE_S: Final = 0.1
# How often progress is reported while one object is read.
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


class ScrubPace:
    """The rate, the progress and the end of a scrub, by what its ledger has seen."""

    def __init__(
        self,
        rate_mb_s: float | None,
        progress: Callable[[ScrubProgress], object] | None,
        stop: Callable[[], bool] | None,
        clock: Callable[[], float],
    ) -> None:
        if rate_mb_s is not None and not rate_mb_s > 0:
            raise InvalidInput(f"rate_mb_s must be more than 0, not {rate_mb_s!r}")
        self._rate = None if rate_mb_s is None else rate_mb_s * 1_000_000
        self._progress, self._stop = progress, stop
        self._clock, self._began = clock, clock()
        self._told = self._began
        self._at: tuple[Kind, str] = ("store", "")
        self.ledger = ScrubLedger()

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self._stop is not None and self._stop()

    def begin(self, kind: Kind, name: str) -> None:
        """Report which object is next."""
        self._at = kind, name
        self._tell()

    def pauses(self) -> Iterator[float]:
        """Yield how long to wait, until the next step keeps to the rate."""
        if self._progress is not None and self._clock() - self._told > TELL_S:
            self._tell()
        while self._rate is not None and not self.stopped:
            early = self.ledger.bytes / self._rate - (self._clock() - self._began)
            if early <= 0:
                return
            yield min(early, PAUSE_S)

    def _tell(self) -> None:
        self._told = self._clock()
        if self._progress is not None:
            seen = self.ledger
            defects = len(seen.defects) + seen.more
            self._progress(ScrubProgress(*self._at, seen.objects, seen.bytes, defects))

    def report(self, *, complete: bool) -> ScrubReport:
        """Return what was seen."""
        seen = self.ledger
        return ScrubReport(
            objects=seen.objects,
            bytes=seen.bytes,
            defects=tuple(seen.defects),
            more=seen.more,
            unsettled=tuple(seen.unsettled),
            complete=complete,
        )


# ── Key scrubbing ─────────────────────────────────────────────────────────────────────────────────
# Keys that belong to no object: what a scrub finds by going through all keys of the servers.
#
# Each data type says of a key under one of its names what it is for, and what makes it an orphan.


# Keys of ours: a letter for the data type, the name in braces, and which part of the object it is.
_OURS = re.compile(rb"hw:(?:(\w+):)?\{([^{}]*)\}(.*)", re.DOTALL)
PREFIX: Final = b"hw:"
# Whoever wrote it may need it: a newer release makes parts that this one does not know.
NOBODYS: Final = "leave it as it is, and find out who wrote it: another program, or a newer release"
OVERWRITTEN: Final = (
    "find out who wrote it; rename it, so that nothing of it is lost, and restore the object from "
    "a backup"
)
# How functions use a part of an object: the command, which tells its type, and the part.
_USED: Final = re.compile(
    r"redis\.p?call\('(H|Z|X|L|R(?=PUSH|POP))[A-Z]+', (K|G|S|queue\.key) \.\. '(:[a-z]+)'"
)
_TYPES: Final = {"H": "hash", "Z": "zset", "X": "stream", "L": "list", "R": "list"}
# A younger object may not be in the registry yet.
YOUNG_US: Final = 60_000_000


class OwnedKey(NamedTuple):
    """A key of ours: the letter of its data type, the name of its object, and its part."""

    key: bytes
    letter: str
    name: str
    part: bytes


def owned(key: bytes) -> OwnedKey | None:
    """Return the parts of a key; None when it has not the form of ours."""
    found = _OURS.fullmatch(key)
    if found is None:
        return None
    try:
        return OwnedKey(key, (found[1] or b"").decode(), found[2].decode(), found[3])
    except UnicodeDecodeError:
        return None


@cache
def parts_of(package: str, owner: str) -> dict[bytes, str]:
    """Return the parts that the functions of a package make behind the key of an object.

    ``owner`` is what they call that key. The type of each part is that of the commands by which
    they use it, so that a part cannot be forgotten here.
    """
    found = {b"": "hash"}
    for letter, key, part in _USED.findall(lua_of(package)):
        if key in owner.split():
            found[part.encode()] = _TYPES[letter]
    return found


def check_type(owner: str, key: bytes, expected: str, ledger: ScrubLedger) -> Checks[bool]:
    """Check that a key has the type of its part; returns whether it has, or is gone by now."""
    (found,) = yield read(ledger, owner, ("TYPE", key))
    if found in (b"none", expected.encode()):
        return True
    ledger.found(f"key {shown(key)}", f"a {expected}", shown(found), OVERWRITTEN)
    return False


def report_orphan(
    owner: str,
    key: bytes,
    expected: str,
    seen: tuple[tuple[Command, object], ...],
    ledger: ScrubLedger,
) -> None:
    """Report a key whose object is gone; its repair frees it."""
    repair = Repair("frees it", owner, seen, (("UNLINK", key),))
    ledger.found(f"key {shown(key)}", expected, "none", repair=repair)


def check_registered(registry: str, name: str, ledger: ScrubLedger) -> Checks[None]:
    """Check that an object which is there is in the registry: housekeepers look there."""
    seen: Command = ("SISMEMBER", registry, name)
    (listed,) = yield read(ledger, registry, seen)
    if listed == 0:
        changes: tuple[Command, ...] = (("SADD", registry, name),)
        repair = Repair("registers it", registry, ((seen, 0),), changes)
        ledger.found(f"key {registry}", f"the name {name!r}", "not there", repair=repair)


# ── Answers scrubbing ─────────────────────────────────────────────────────────────────────────────
# What must be true of the answers that a stream or a queue remembers for its producers.
#
# Each answer names offsets that were assigned, and each producer is listed with the time of its
# latest write, so that it is forgotten eventually. See lua/shared/20-producers.lua.


ANSWERS: Final = 128
_SLOT = re.compile(rb"(.*)\0(\d+)", re.DOTALL)
_ANSWER = re.compile(rb"(\d+):(\d+):(\d+)(?::.*)?", re.DOTALL)


def check_answers(
    key: str, ledger: ScrubLedger, end: Command, end_of: Callable[[Any], int | None]
) -> Checks[None]:
    """Check all answers of an object; ``end`` reads the last number that it has assigned."""
    cursor: bytes | str = "0"
    while True:
        commands: tuple[Command, ...] = (
            end,
            ("HSCAN", f"{key}:answers", cursor, "COUNT", PAGE),
            ("ZCARD", f"{key}:producers"),
        )
        replies = yield read(ledger, key, *commands)
        if ledger.wrong_types(commands, replies):
            return
        last, (cursor, found) = end_of(replies[0]), replies[1]
        producers = []
        for name, value in zip(found[::2], found[1::2], strict=True):
            slot = _SLOT.fullmatch(name)
            if slot is None:
                producers.append(name)
                if not value.isdigit():
                    _report(ledger, name, "a sequence", value)
                continue
            answer = _ANSWER.fullmatch(value)
            if answer is None:
                _report(ledger, slot[1], "sequence:first:last", value)
                continue
            sequence, first, end_at = map(int, answer.groups())
            if sequence % ANSWERS != int(slot[2]):
                place = f"a sequence whose rest by {ANSWERS} is {int(slot[2])}"
                _report(ledger, slot[1], place, value)
            elif last is not None and (end_at > last or first > end_at + 1):
                _report(ledger, slot[1], f"numbers up to {last}, the last one given out", value)
        if producers:
            yield from _check_listed(key, producers, ledger)
        if cursor == b"0":
            return


def _report(ledger: ScrubLedger, producer: bytes, expected: str, found: bytes) -> None:
    name = shown(producer)
    cure = "a repeat of that write would get a wrong answer: let the producer take a new name"
    ledger.found(f"answer to producer {name!r}", expected, repr(found), cure)


def _check_listed(key: str, producers: list[bytes], ledger: ScrubLedger) -> Checks[None]:
    answers: Command = ("HMGET", f"{key}:answers", *producers)
    listed: Command = ("ZMSCORE", f"{key}:producers", *producers)
    sequences, times, (now, _) = yield read(ledger, key, answers, listed, ("TIME",))
    for producer, sequence, time in zip(producers, sequences, times, strict=True):
        if sequence is not None and time is None:
            seen: Command = ("ZSCORE", f"{key}:producers", producer)
            changes: tuple[Command, ...] = (
                ("ZADD", f"{key}:producers", int(now) * 1000, producer),
            )
            repair = Repair("lists it as of now", key, ((seen, None),), changes)
            name = shown(producer)
            ledger.found(
                f"producer {name!r}", "the time of its latest write", "none", repair=repair
            )
