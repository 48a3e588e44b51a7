"""A declared operation as each door is asked for it, spelled here a second time by the rules.

The rules are those of the reference pages; nothing of the derivers is used, which this holds to
account. ``given`` has the values of parameters as the library takes them, by their names in doors.
"""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Final, Protocol
from urllib.parse import quote, urlencode

import hiredis
import msgspec

from headwater.doors.catalogue import Declared, Kind, Parameter
from headwater.doors.replies import reply
from headwater.kernel.declaring import Spelling
from headwater.kernel.inputs import whole_ms
from headwater.log.settling import ranges_by_partition, ranges_of
from headwater.serve.resp.derived import spelled_reply
from headwater.serve.resp.replies import encode_reply
from headwater.views.record import view_of
from tests.support.api import ApiClient
from tests.support.commands import Answer, run

Given = Mapping[str, Any]
_OF_TIME: Final = re.compile(
    r"(?!max_|backoff|longest_|marker|ack_|every_).*_ms|.*_per_s|(tail_)?bytes|waits|by"
)
# Behind the others in RESP, as any number of words.
_REST: Final = (
    Spelling.OFFSETS,
    Spelling.OFFSETS_BY_PARTITION,
    Spelling.POSITION_BY_PARTITION,
    Spelling.TEXTS,
    Spelling.MEMBERS,
    Spelling.SCORES,
)


def listed(operation: Declared, value: Any) -> Any:
    """Return a result as doors list it: the first 100 of what a method yields."""
    return list(itertools.islice(value, 100)) if operation.yields else value


class Asked(Exception):
    """A door has refused what it was asked for."""


class AnyDoor(Protocol):
    """A door to the store, by its name."""

    name: str

    def ask(self, operation: Declared, names: Sequence[str], given: Given) -> Any:
        """Return what is answered, as JSON has it; raises Asked."""

    def answer(self, operation: Declared, names: Sequence[str], value: Any) -> Any:
        """Return what has to be answered for a result of the library."""

    def result(self, operation: Declared, answer: Any) -> Any:
        """Return the result of the library that an answer stands for."""


def words_of(parameter: Parameter, value: Any) -> list[str]:
    """Return a value as commands are given it, in RESP and in the command line."""
    match parameter.says.shape:
        case Spelling.OFFSETS:
            return [_span(offset) for offset in value]
        case Spelling.OFFSETS_BY_PARTITION:
            return [f"{at}:{_span(offset)}" for at, spans in value.items() for offset in spans]
        case Spelling.POSITION_BY_PARTITION if isinstance(value, dict):
            return [f"{at}:{offset}" for at, offset in value.items()]
        case Spelling.SCORES:
            return [word for member, score in value.items() for word in (str(score), member)]
        case Spelling.TEXTS | Spelling.MEMBERS:
            return list(value)
    return [str(value)]


def _span(offset: Any) -> str:
    return f"{offset[0]}-{offset[1]}" if isinstance(offset, tuple) else str(offset)


def in_json(parameter: Parameter, value: Any) -> Any:
    """Return a value as a field of JSON."""

    def spans(offsets: list[Any]) -> list[Any]:
        return [
            {"first": one[0], "last": one[1]} if isinstance(one, tuple) else one for one in offsets
        ]

    match parameter.says.shape:
        case Spelling.OFFSETS:
            return spans(value)
        case Spelling.OFFSETS_BY_PARTITION:
            return {str(at): spans(offsets) for at, offsets in value.items()}
        case Spelling.MEMBERS:
            return [{"member": member} for member in value]
        case Spelling.SCORES:
            return [{"member": member, "score": score} for member, score in value.items()]
        case Spelling.DOCUMENT:
            return json.loads(view_of(parameter.kind).of(value).to_json())
    return value


class Records:
    """What doors have in common that answer with the record of an operation."""

    def answer(self, operation: Declared, names: Sequence[str], value: Any) -> Any:
        """Return the record of the operation."""
        return json.loads(reply(operation, names, listed(operation, value)).to_json())

    def result(self, operation: Declared, answer: Any) -> Any:
        """Return the one field that is the result, or the record without the address."""
        if operation.row.result:
            found = answer[operation.row.result]
            return {int(at): to for at, to in found.items()} if isinstance(found, dict) else found
        facts = {name: value for name, value in answer.items() if name not in operation.keys}
        return operation.returns and operation.returns(**facts)


class HttpDoor(Records):
    """Requests: the address and what names a part of it are in the path, the rest is the body."""

    name = "HTTP"

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    def ask(self, operation: Declared, names: Sequence[str], given: Given) -> Any:
        """Send a request."""
        method, _, end = (operation.row.http or f"POST {operation.verb}").partition(" ")
        path = f"{operation.kind.path}/{end}".rstrip("/")
        for key, name in {**dict(zip(operation.kind.keys, names, strict=True)), **given}.items():
            path = path.replace(f"{{{key}}}", quote(str(name), safe=""))
        sent = {
            one.called: in_json(one, given[one.called])
            for one in operation.parameters
            if one.called in given and one.called not in operation.in_path
        }
        if method in ("GET", "DELETE"):
            query = urlencode({name: str(value).lower() for name, value in sent.items()})
            answer = self._client.ask(method, f"{path}?{query}" if query else path)
        else:
            answer = self._client.ask(method, path, sent)
        if answer.status >= 400:
            raise Asked(answer.status, answer.body["title"], answer.body["detail"])
        assert answer.status == 200
        return answer.body


class CommandLine(Records):
    """Commands: what has to be given is an argument, what has a default or a name is an option."""

    name = "command line"

    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, operation: Declared, names: Sequence[str], given: Given) -> Any:
        """Run a command for a program."""
        answer = self.run(operation, names, given, "--json")
        return answer.row if operation.rows is None else answer.rows

    def answer(self, operation: Declared, names: Sequence[str], value: Any) -> Any:
        """Return the record of the operation, or only the rows of a table."""
        record = super().answer(operation, names, value)
        return record if operation.rows is None else record[operation.row.result]

    def run(self, operation: Declared, names: Sequence[str], given: Given, *more: str) -> Answer:
        """Run a command; raises Asked."""
        row, arguments, options = operation.row, list[str](), list[str]()
        stdin = None
        for one in operation.parameters:
            if one.called not in given:
                continue
            value = given[one.called]
            if one.says.shape is Spelling.DOCUMENT:
                stdin = view_of(one.kind).of(value).to_json()
            elif one.says.shape is Spelling.SCORES:
                arguments += value
                options += ["--score", str(max(value.values()))]
            elif one.says.shape is Spelling.TIME:
                time = dt.datetime.fromtimestamp(value / 1000, dt.UTC)
                options += [one.option, time.isoformat()]
            elif one.variadic or (one.required and not one.keyword and one.says.typed is None):
                arguments += words_of(one, value)
            else:
                # A word turns a flag off that is on by default.
                option = f"--{one.says.word.lower()}" if value is False else one.option
                options += [option, *([] if isinstance(value, bool) else words_of(one, value))]
        command = row.command or operation.verb.replace("_", "-")
        if row.asks:
            options.append("--yes")
        words = [*operation.kind.command.split(), command, *names, *arguments, *options, *more]
        answer = run(self._url, *words, stdin=stdin)
        if answer.code:
            raise Asked(answer.code, answer.err)
        return answer


class RespDoor:
    """Commands: the address, what has to be given, options by word, and what may be many."""

    name = "RESP"

    def __init__(self, send: Callable[..., Any]) -> None:
        self._send = send

    def ask(self, operation: Declared, names: Sequence[str], given: Given) -> Any:
        """Send a command."""
        name = operation.row.resp or operation.kind.letters + operation.verb.replace("_", "")
        needed, options, rest = list[str](), list[str](), list[str]()
        for one in operation.parameters:
            if one.called not in given:
                continue
            value, words = given[one.called], words_of(one, given[one.called])
            if one.says.shape in _REST:
                rest += words
            elif one.required:
                needed += words
            else:
                word = one.says.word or one.called.removesuffix("_ms").replace("_", "").upper()
                options += [word, *([] if isinstance(value, bool) else words)]
        if not options and any(not record.optional for record in operation.records.values()):
            options = ["OFF"]
        answer = self._send(name.upper(), *names, *needed, *options, *rest)
        if isinstance(answer, Exception):
            code, _, text = str(answer).partition(" ")
            raise Asked(code, code, text)
        return _plain(answer)

    def answer(self, operation: Declared, names: Sequence[str], value: Any) -> Any:  # noqa: ARG002
        """Return the result itself; nothing is 1 if it has a name, else OK."""
        if operation.returns is None:
            return 1 if operation.row.result else "OK"
        value = listed(operation, value)
        reader = hiredis.Reader()
        reader.feed(encode_reply(spelled_reply(value), 3))
        return _plain(reader.gets())

    def result(self, operation: Declared, answer: Any) -> Any:
        """Return a flag for 1 and 0, and a record or a mapping for what spells one."""
        if operation.returns is bool:
            return bool(answer)
        if isinstance(answer, dict):
            return operation.returns(*answer.values())
        if isinstance(answer, list) and hasattr(operation.returns, "_fields"):
            return operation.returns(*answer)
        return dict(answer) if isinstance(answer, list) else answer


class ThroughDoor:
    """An object of the library, of which every derived operation goes through a door.

    What has no words, and what the door does not have, goes to the store directly; so do lists,
    states, what has wishes, and the removal of a group, which the object itself has to know.
    """

    kind: ClassVar[Kind | None] = None

    def __init__(self, direct: Any, door: AnyDoor, *names: str) -> None:
        self._direct = direct
        self._door = door
        self._names = names

    def __getattr__(self, verb: str) -> Any:
        direct = getattr(self._direct, verb)
        of_kind = () if self.kind is None else self.kind.operations(asyncio=False)
        operation = next((one for one in of_kind if one.verb == verb != "remove"), None)
        if operation is None or not operation.is_in(self._door.name) or operation.records:
            return direct
        if operation.rows is not None or operation.row.wishes or verb == operation.kind.state:
            return direct

        def through(*args: Any, **named: Any) -> Any:
            given = _given(operation, args, named)
            if given is None:
                return direct(*args, **named)
            try:
                answer = self._door.ask(operation, self._names, given)
            except Asked as refused:
                if operation.row.must and refused.args[0] == 404:
                    return operation.returns(0)
                raise self.refusal(*refused.args[1:]) from None
            return self._door.result(operation, answer)

        return through

    def refusal(self, name: str, text: str) -> Exception:
        """Return the error of the library that a refusal stands for."""
        raise NotImplementedError


def _given(operation: Declared, args: Sequence[Any], named: Given) -> dict[str, Any] | None:
    """Return the values of parameters by their names in doors; None for what has no words."""
    given, positional = {}, list(args)
    for one in operation.parameters:
        if one.variadic:
            value: Any = positional
        elif positional and not one.keyword:
            value = positional.pop(0)
        elif one.name in named:
            value = named[one.name]
        else:
            continue
        match one.says.shape:
            case Spelling.OFFSETS:
                value = list(ranges_of(value))
            case Spelling.OFFSETS_BY_PARTITION:
                value = ranges_by_partition(value)
            case Spelling.TEXTS:
                value = [getattr(item, "receipt", item) for item in value]
            case Spelling.MS | Spelling.SPAN:
                value = whole_ms(value)
        if value is None or (not value and isinstance(value, list | tuple | dict)):
            return None
        if isinstance(value, BaseException | dt.datetime):
            return None
        given[one.called] = value
    return given


def _plain(answer: Any) -> Any:
    if isinstance(answer, bytes):
        return answer.decode()
    if isinstance(answer, dict):
        return {_plain(name): _plain(value) for name, value in answer.items()}
    return [_plain(item) for item in answer] if isinstance(answer, list) else answer


def alike(answer: Any, name: str) -> Any:
    """Return an answer without what differs between two objects of the same history."""
    text = json.dumps(_timeless(answer), default=str, sort_keys=True).replace(name, "NAME")
    # A token is a time in microseconds; and so much is left of a lease that has just begun.
    return re.sub(r"\b(1[67]\d{11}(\d{3}|-\d+)?|29\d{3}|30000)\b", "TIME", text)


def _timeless(value: Any) -> Any:
    """Return a record as a mapping, without ages, rates, and sizes, in which times are spelled."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.structs.asdict(value)
    elif is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {
            str(name): _timeless(item)
            for name, item in value.items()
            if not _OF_TIME.fullmatch(str(name).replace("-", "_"))
        }
    if isinstance(value, list | tuple):
        return [_timeless(item) for item in value]
    return value
