"""Scrubbing: reading everything in a store, and reporting what is damaged or inconsistent.

Each data type knows what must be true of its objects. Its checks are generators of operations, so
that the caller can pause between two of them, and stop after any. They work on a store that is in
use, and raise no false alarm:

- what is compared is read by one call, as one step (``Subject.read``), and each call is short;
- a sum over more than one call can show counts that never stood together. It is reported only
  when it was read twice, and nothing of it had changed in between (``settled``).

A defect that can be repaired carries its repair: what is changed, on which condition. ``apply``
makes it in one step, or not at all when the object was changed since it was read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from zlib import crc32

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
# Is given the rows of a page, and replies to more commands.
Visit: TypeAlias = Callable[..., Checks[None] | None]

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

    @property
    def repairable(self) -> bool:
        """Whether ``headwater repair`` cures it."""
        return self.repair is not None


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


@dataclass(frozen=True, slots=True)
class Subject:
    """The object that is checked: the key of its calls, and the ledger that gets its defects."""

    key: Key
    ledger: ScrubLedger
    also: tuple[Key, ...] = ()

    def read(self, *commands: Command) -> Operation[list[Any]]:
        """Run commands that only read the keys of the object, as one step; returns their replies.

        An error takes the place of a reply where a key has another type or a value another form.
        """
        words = tuple(word for command in commands for word in (len(command), *command))
        call = Call("hw_scrub_read", self.key, words, read_only=True, also=self.also)
        replies: list[Any] = yield call
        self.ledger.bytes += size_of(replies)
        return replies

    def look(self, *commands: Command) -> Checks[list[Any] | None]:
        """Read; returns None, with a defect for each, when keys are of other types."""
        replies = yield self.read(*commands)
        wrong = {
            command[1]: (command[0], reply)
            for command, reply in zip(commands, replies, strict=True)
            if isinstance(reply, Exception)
        }
        for key, (verb, reply) in wrong.items():
            self.found(
                f"key {shown(key)}", f"a key that {shown(verb)} can read", reply, OVERWRITTEN
            )
        return None if wrong else replies

    def walk(
        self, verb: str, key: Argument, visit: Visit, *more: Command, count: int | None = None
    ) -> Checks[None]:
        """Visit a hash, a sorted set or a list, page by page, with the replies to more commands.

        A page and these replies are read as one step.
        """
        cursor, start, count = b"0", 0, count or PAGE
        while True:
            scan = verb.endswith("SCAN")
            span = (cursor, "COUNT", count) if scan else (start, start + count - 1)
            replies = yield from self.look((verb, key, *span), *more)
            if replies is None:
                return
            page, *rest = replies
            start += count
            if scan:
                cursor, page = page
            if (checks := visit(page, *rest)) is not None:
                yield from checks
            if cursor == b"0" if scan else len(page) < count:
                return

    def found(self, place: str, expected: object, found: object, cure: str) -> None:
        """Note a defect that nothing here repairs."""
        self.ledger.found(place, expected, found, cure)

    def mend(
        self,
        place: str,
        expected: object,
        found: object,
        what: str,
        seen: Iterable[tuple[Command, Any]],
        *changes: Command,
    ) -> None:
        """Note a defect with its repair: changes, made while all commands reply as was seen."""
        repair = Repair(what, self.key, tuple(seen), changes, self.also)
        self.ledger.found(place, expected, found, repair=repair)

    def nobodys(self, key: bytes, expected: str, found: str) -> None:
        """Note a key that this release has not made."""
        self.found(f"key {shown(key)}", expected, found, NOBODYS)


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


def settled(
    ledger: ScrubLedger, sweep: Callable[[bool], Checks[Sweep | None]]
) -> Checks[Sweep | None]:
    """Return a reading whose sums differ from the counters, unless a concurrent change explains it.

    Returns None when all agrees. Pages that were read one after the other may not have stood
    together; so a difference counts when a second reading finds the same, in the same pages. An
    object that changes all the time is noted as unsettled. ``sweep`` is told whether it is the
    first one, which checks each row as well.
    """
    before: Sweep | None = None
    for look in range(LOOKS):
        latest = yield from sweep(look == 0)
        if latest is None or not any(latest.differences):
            return None
        if latest.pages == 0:
            return latest
        if before and (latest.pages, latest.differences) == (before.pages, before.differences):
            return latest
        before = latest
    ledger.leave_unsettled()
    return None


Row: TypeAlias = tuple[bytes, bytes]


class RowsPage(NamedTuple):
    """A page of a sorted set, and what was read with it, as one step.

    Rows are members with their scores. A page begins with the last row of the page before, so that
    neighbours are seen together; ``fresh`` are the rows without that one.
    """

    fields: list[bytes | None]
    more: list[Any]
    rows: list[Row]
    fresh: list[Row]
    final: bool


class Sums(NamedTuple):
    """The counters of an object, and the sorted set whose rows they count.

    ``counters`` are fields of the hash ``owner``; ``beside`` are others, whose change makes their
    repair void. ``total`` returns what a page adds to each counter, or None to give up. ``check``
    is for more that must be true of a page.
    """

    owner: str
    counters: tuple[str, ...]
    beside: tuple[str, ...]
    rows: str
    total: Callable[[RowsPage], tuple[int, ...] | None]
    check: Callable[[RowsPage], Checks[None] | None]
    more: tuple[Command, ...] = ()


def check_sums(subject: Subject, sums: Sums) -> Checks[None]:
    """Compare counters with what the rows add up to, and check the rows."""
    fields: Command = ("HMGET", sums.owner, *sums.counters, *sums.beside)

    def sweep(first: bool) -> Checks[Sweep | None]:
        start, digest, before = b"-inf", 0, b""
        totals = (0,) * len(sums.counters)
        while True:
            span = (start, "+inf", "BYSCORE", "LIMIT", 0, PAGE, "WITHSCORES")
            page_of: Command = ("ZRANGE", sums.rows, *span)
            values, *more, reply = yield subject.read(fields, *sums.more, page_of)
            rows = list(zip(reply[::2], reply[1::2], strict=True))
            final = len(rows) < PAGE or reply[-1] == start
            page = RowsPage(values, more, rows, rows[reply[:1] == [before] :], final)
            total = sums.total(page)
            if total is None:
                return None
            totals = tuple(a + b for a, b in zip(totals, total, strict=True))
            if first and (checks := sums.check(page)) is not None:
                yield from checks
            if final:
                counted = tuple(number(value) or 0 for value in values[: len(totals)])
                return Sweep(digest, totals, counted, values)
            digest = crc32(b" ".join(reply), digest) or 1
            before, start = rows[-1]

    wrong = yield from settled(subject.ledger, sweep)
    if wrong is None:
        return
    for place, counter in enumerate(sums.counters):
        total, counted = wrong.sums[place], wrong.counted[place]
        if total != counted:
            change: Command = ("HINCRBY", sums.owner, counter, total - counted)
            seen = [(fields, wrong.seen)]
            what = f"sets {counter} to {total}"
            subject.mend(f"field {counter}", total, counted, what, seen, change)


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

    @property
    def owner(self) -> str:
        """The key of the object itself."""
        return f"hw:{self.letter}:{{{self.name}}}"


def owned(key: bytes) -> OwnedKey | None:
    """Return the parts of a key; None when it has not the form of ours."""
    match = _OURS.fullmatch(key)
    if match is None:
        return None
    try:
        return OwnedKey(key, (match[1] or b"").decode(), match[2].decode(), match[3])
    except UnicodeDecodeError:
        return None


class PartRule(NamedTuple):
    """What must be true of the parts of an object that match a pattern.

    Without a ``type`` it is for parts that functions make, whose type they tell; if that is empty,
    ``check`` finds it out. ``check`` is for what else must be true; it is given the object, the
    key, and the groups of the pattern.
    """

    pattern: str
    type: str | None = None
    check: Callable[..., Checks[None]] | None = None


@dataclass(frozen=True)
class KeyRules:
    """Which keys under the name of an object belong to it; the first rule that matches counts.

    ``made`` names the package whose functions make parts of it, and what they call its key.
    """

    noun: str
    made: tuple[str, str] | None = None
    rules: tuple[PartRule, ...] = ()
    missing: str = "no such part"

    def check(self, subject: Subject, owned: OwnedKey) -> Checks[None]:
        """Check one key."""
        kind = parts_of(*self.made).get(owned.part) if self.made else None
        check, groups = None, tuple[Any, ...]()
        for rule in self.rules:
            match = re.fullmatch(rule.pattern.encode(), owned.part, re.DOTALL)
            if match and (kind is not None or rule.type is not None):
                kind, check, groups = kind or rule.type, rule.check, match.groups()
                break
        if kind is None:
            subject.nobodys(owned.key, self.noun, self.missing)
            return
        right = not kind or (yield from check_type(subject, owned.key, kind))
        if right and check is not None:
            yield from check(subject, owned, *groups)


@cache
def parts_of(package: str, owner: str) -> dict[bytes, str]:
    """Return the parts that the functions of a package make behind the key of an object.

    ``owner`` is what they call that key. The type of each part is that of the commands by which
    they use it, so that a part cannot be forgotten here.
    """
    parts = {b"": "hash"}
    for letter, key, part in _USED.findall(lua_of(package)):
        if key in owner.split():
            parts[part.encode()] = _TYPES[letter]
    return parts


def check_type(subject: Subject, key: bytes, expected: str) -> Checks[bool]:
    """Check that a key has the type of its part; returns whether it has, or is gone by now."""
    (actual,) = yield subject.read(("TYPE", key))
    if actual in (b"none", expected.encode()):
        return True
    subject.found(f"key {shown(key)}", f"a {expected}", shown(actual), OVERWRITTEN)
    return False


def report_orphan(
    subject: Subject, key: bytes, expected: str, *seen: tuple[Command, object]
) -> None:
    """Report a key whose object is gone; its repair frees it."""
    subject.mend(f"key {shown(key)}", expected, "none", "frees it", seen, ("UNLINK", key))


def check_owned(
    subject: Subject, key: bytes, expected: str, owner: Command, *while_freed: Command
) -> Checks[None]:
    """Check that a key has what it belongs to, unless that is just being freed, in steps."""
    there, fact, *freed = yield subject.read(("EXISTS", key), owner, *while_freed)
    if there and fact is None and not any(freed):
        report_orphan(subject, key, expected, (owner, None))


def check_registered(
    registry: str,
    name: str,
    ledger: ScrubLedger,
    born_us: float = 0,
    now: Sequence[bytes] | None = None,
) -> Checks[None]:
    """Check that an object which is there is in the registry: housekeepers look there.

    One that is too young ``now``, by the time of the server, may not be there yet.
    """
    if now is not None and int(now[0]) * 1_000_000 + int(now[1]) - born_us <= YOUNG_US:
        return
    subject, seen = Subject(registry, ledger), ("SISMEMBER", registry, name)
    (listed,) = yield subject.read(seen)
    if listed == 0:
        change, place = ("SADD", registry, name), f"key {registry}"
        subject.mend(place, f"the name {name!r}", "not there", "registers it", [(seen, 0)], change)


# ── Answers scrubbing ─────────────────────────────────────────────────────────────────────────────
# What must be true of the answers that a stream or a queue remembers for its producers.
#
# Each answer names offsets that were assigned, and each producer is listed with the time of its
# latest write, so that it is forgotten eventually. See lua/shared/20-producers.lua.


ANSWERS: Final = 128
_SLOT = re.compile(rb"(.*)\0(\d+)", re.DOTALL)
_ANSWER = re.compile(rb"(\d+):(\d+):(\d+)(?::.*)?", re.DOTALL)
_WRONG_ANSWER: Final = (
    "a repeat of that write would get a wrong answer: let the producer take a new name"
)


def check_answers(
    subject: Subject, end: Command, end_of: Callable[[Any], int | None]
) -> Checks[None]:
    """Check all answers of an object; ``end`` reads the last number that it has assigned."""
    key = f"{subject.key!s}"

    def visit(answers: list[bytes], ended: Any, _: int) -> Checks[None]:
        last, producers = end_of(ended), []
        for name, value in zip(answers[::2], answers[1::2], strict=True):
            slot = _SLOT.fullmatch(name)
            if slot is None:
                producers.append(name)
            fault = _fault_of(slot, value, last)
            if fault:
                place = f"answer to producer {shown(slot[1] if slot else name)!r}"
                subject.found(place, fault, repr(value), _WRONG_ANSWER)
        if producers:
            yield from _check_listed(subject, producers)

    more: Command = ("ZCARD", f"{key}:producers")
    yield from subject.walk("HSCAN", f"{key}:answers", visit, end, more)


def _fault_of(slot: re.Match[bytes] | None, value: bytes, last: int | None) -> str:
    """Return what was expected of an answer; nothing when it is right."""
    if slot is None:
        return "" if value.isdigit() else "a sequence"
    answer = _ANSWER.fullmatch(value)
    if answer is None:
        return "sequence:first:last"
    sequence, first, end = map(int, answer.groups())
    if sequence % ANSWERS != int(slot[2]):
        return f"a sequence whose rest by {ANSWERS} is {int(slot[2])}"
    if last is not None and (end > last or first > end + 1):
        return f"numbers up to {last}, the last one given out"
    return ""


def _check_listed(subject: Subject, producers: list[bytes]) -> Checks[None]:
    times = f"{subject.key!s}:producers"
    sequences, seen, (now, _) = yield subject.read(
        ("HMGET", f"{subject.key!s}:answers", *producers),
        ("ZMSCORE", times, *producers),
        ("TIME",),
    )
    for producer, sequence, time in zip(producers, sequences, seen, strict=True):
        if sequence is not None and time is None:
            subject.mend(
                f"producer {shown(producer)!r}",
                "the time of its latest write",
                "none",
                "lists it as of now",
                [(("ZSCORE", times, producer), None)],
                ("ZADD", times, int(now) * 1000, producer),
            )
