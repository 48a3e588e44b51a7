"""The doors of Headwater as text: what programs and people see, frozen under tests/golden.

``make derived`` renews the files; their diff is then the list of what a change does to the doors.
Nothing here depends on the machine, on releases of Python and of the libraries, or on the names of
internal modules. No server is started.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import inspect
import json
import re
import sys
import types
import typing
from collections.abc import Callable, Generator, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from typer.main import get_command
from typer.testing import CliRunner
from typer.utils import get_params_from_function

from headwater import errors
from headwater.cli.main import app
from headwater.cli.program import bare_root, spelled
from headwater.doors.catalogue import catalogue
from headwater.kernel.declaring import DOORS, Scope
from headwater.serve.api.routes import document, status_of
from headwater.serve.api.table import ROUTES
from headwater.serve.console.actions.table import ACTIONS
from headwater.serve.console.calls import PageCall
from headwater.serve.resp.replies import error_reply
from headwater.serve.resp.table import COMMANDS
from headwater.serve.tokens import Grant

FOLDER = Path(__file__).parents[1] / "golden"
# It states how many operations a door has by hand.
ARCHITECTURE = FOLDER.parents[1] / "ARCHITECTURE.md"
MODULES = [
    import_module(f"headwater{name}")
    for name in ("", ".aio", ".outbox", ".timeline", ".spark", ".testing", ".serve")
]
# Methods that statements and operators of the language call, which are public, too.
_CALLED_BY_PYTHON = re.compile(
    "__(enter|exit|aenter|aexit|iter|aiter|next|anext|len|bool|contains|getitem|call)__"
)


def _sentence(doc: str | None) -> str:
    """Return the first sentence of a docstring."""
    paragraph = " ".join(inspect.cleandoc(doc or "").partition("\n\n")[0].split())
    return re.split(r"(?<=\.) (?=[A-Z`])", paragraph)[0]


# HTTP


def openapi() -> Iterator[str]:
    """Yield the OpenAPI document; the problems that all routes share are shown once."""
    shown = json.loads(document(ROUTES), object_hook=_alike)
    del shown["info"]["version"]
    operations = [operation for path in shown["paths"].values() for operation in path.values()]
    replies = [operation["responses"].items() for operation in operations]
    shared = {s: reply for s, reply in replies[0] if all((s, reply) in each for each in replies)}
    for operation in operations:
        operation["responses"] = {
            status: reply
            for status, reply in operation["responses"].items()
            if status not in shared
        }
    # Without descriptions, which are Python's names of statuses: 3.13 has changed some.
    shown["responses of every operation"] = {s: reply["content"] for s, reply in shared.items()}
    yield json.dumps(shown, indent=1, sort_keys=True, ensure_ascii=False)


def _alike(node: dict[str, Any]) -> dict[str, Any]:
    """Return a schema as every release shows it.

    Releases of msgspec differ in the order of alternatives; Python 3.13 removes the indentation of
    docstrings, from which descriptions are made.
    """
    if "anyOf" in node:
        node["anyOf"].sort(key=json.dumps)
    if isinstance(node.get("description"), str):
        node["description"] = inspect.cleandoc(node["description"])
    return node


# Command line


def command_help(command: Any = None, above: Any = None) -> Iterator[str]:
    """Yield what ``--help`` says of a command and of those in it, an option a line.

    Typer's own layout is left out: it depends on the release and on the terminal.
    """
    command = get_command(app) if command is None else command
    context = command.context_class(command, above, command.name if above else "headwater")
    inner = getattr(command, "commands", {})
    # This also finds what stands behind each option.
    parameters = [one for one in command.get_params(context) if one.name != "help"]
    arguments = [spelled(one) for one in parameters if one.param_type_name == "argument"]
    yield " ".join(["#", context.command_path, *arguments, *(["COMMAND"] if inner else [])])
    yield from (line for line in (command.help or "").splitlines() if line)
    kinds = get_params_from_function(command.callback) if command.callback else {}
    for parameter in parameters:
        kind = kinds[parameter.name].annotation if parameter.name in kinds else bool
        yield "  " + " ".join(filter(None, _parameter_words(parameter, kind)))
    if command.epilog:
        yield command.epilog
    yield ""
    for one in inner.values():
        yield from command_help(one, context)


def _parameter_words(parameter: Any, kind: Any) -> Iterator[str]:
    is_option = parameter.param_type_name == "option"
    if is_option:
        yield "/".join([*parameter.opts, *parameter.secondary_opts])
    if not getattr(parameter, "is_flag", False):
        yield f"{parameter.metavar or ''} <{_kind_words(kind)}>".lstrip()
    yield parameter.help
    # Releases of Typer have the limits in different places.
    limits = getattr(parameter, "type", parameter)
    default = getattr(parameter.default, "value", parameter.default)
    shown = parameter.show_default if is_option else False
    facts = {
        "min": getattr(limits, "min", None),
        "max": getattr(limits, "max", None),
        "default": shown if isinstance(shown, str) else default if shown else None,
        "env": parameter.envvar,
        "required": parameter.required,
        "hidden": getattr(parameter, "hidden", False),
    }
    for name, fact in facts.items():
        if fact is not None and fact is not False:
            yield f"[{name}]" if fact is True else f"[{name}: {fact}]"


def _kind_words(kind: Any) -> str:
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return "|".join(str(one.value) for one in kind)
    if typing.get_origin(kind) in (types.UnionType, typing.Union, typing.Literal):
        parts = [one for one in typing.get_args(kind) if one is not type(None)]
        return "|".join(one if isinstance(one, str) else _kind_words(one) for one in parts)
    return _annotation(kind)


# Redis clients


def commands() -> Iterator[str]:
    """Yield every command as COMMAND INFO and COMMAND DOCS show it, with its scope and audit."""
    ask: Callable[..., Any] = COMMANDS[b"COMMAND"].handler
    docs = ask(None, [b"COMMAND", b"DOCS"])
    for name, arity, flags, first, last, step, *_ in ask(None, [b"COMMAND", b"INFO"]):
        command, told = COMMANDS[name.encode()], docs[name]
        yield f"{command.name} {command.syntax}".rstrip()
        yield f"  {told['summary']}"
        scope = "none" if command.scope is None else command.scope.name.lower()
        scope += ", wider for some words" * bool(command.wider)
        scope += ", audited" * bool(command.look) + ", blocking" * command.blocking
        yield f"  scope {scope}; group {told['group']}"
        marks = " ".join(sorted(flag.text for flag in flags))
        yield f"  arity {arity}; keys {first} {last} {step}, step {command.keys}; flags {marks}"
        yield f"  arguments {json.dumps(told.get('arguments', []), sort_keys=True)}"


# Console


class _StandIn(int):
    """What an action of the console reads of a store: the number one, and itself for all else.

    Facts that an action shows are given by name; ``rows`` are what iterating over it yields.
    """

    def __new__(cls, **_: Any) -> _StandIn:
        return super().__new__(cls, 1)

    def __init__(self, **facts: Any) -> None:
        self.__dict__.update(facts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *_: Any, **__: Any) -> _StandIn:
        return self

    def __getitem__(self, _: Any) -> _StandIn:
        return self

    def __iter__(self) -> Iterator[Any]:
        return iter(self.__dict__.get("rows", ()))

    def __len__(self) -> int:
        return 1

    def __await__(self) -> Generator[Any, None, _StandIn]:
        yield from ()
        return self


class _Form(dict[str, str]):
    """The fields of a form, which notes those that an action reads."""

    def __init__(self, fields: dict[str, str]) -> None:
        super().__init__(fields)
        self.read: set[str] = set()

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add(name)
        return super().get(name, default)


_FORM = {
    name: name.upper()
    for name in (
        *("stream", "group", "queue", "channel", "key", "consumer", "job", "replay"),
        *("tag", "value", "into", "producer"),
    )
} | {
    "place": "1.2.3", "to": "4", "up_to": "4", "first": "5", "last": "6", "shards": "7",
    "delay_ms": "8", "priority": "9", "rate": "10", "speed": "2", "headers": "name: value",
    "max_count": "11", "max_age": "12s", "max_bytes": "13MiB", "max_idle": "14s", "force": "1",
    "which": "some", "l0": "g:STREAM/GROUP#15", "l1": "q:QUEUE#16",
}  # fmt: skip
_WORDS = {"pending": ("skip", "return"), "letters": ("redrive", "discard")}


def console_actions() -> Iterator[str]:
    """Yield every action: the fields it reads, its scope, and the same for HTTP, CLI and Python."""
    for name in sorted(ACTIONS):
        for word in _WORDS.get(name, ("",)):
            # Messages of queues have no tag: with one, letters of queues would be left out.
            form = _Form(_FORM | {"action": word} | ({"tag": ""} if name == "letters" else {}))
            action = asyncio.run(_prepared(name, form))
            yield f"{name} {word}".rstrip()
            yield f"  fields {' '.join(sorted(form.read))}"
            marks = [mark for mark in ("careful", "is_job", "sql") if getattr(action, mark)]
            yield "  " + " ".join([action.title, f"({action.scope.name.lower()})", *marks])
            yield f"  {action.method} {action.path} {json.dumps(action.body, sort_keys=True)}"
            yield from (f"  {line}" for line in (action.cli, *action.python.splitlines()))
            yield f"  back to {action.back}"


async def _prepared(name: str, form: _Form) -> Any:
    position = _StandIn(consumer="CONSUMER", stream="STREAM")
    job = _StandIn(job="JOB", replay="REPLAY", into="INTO", action="redrive", state="running")
    place = _StandIn(checkpoint=position, letters="LETTERS")
    served = _StandIn(
        hw=_StandIn(store=_StandIn(rows=[place], points=_StandIn())),
        database=_StandIn(checkpoints=_StandIn(rows=[position])),
        jobs=_StandIn(letters=_StandIn(rows=[job]), replays=_StandIn(rows=[job])),
    )
    grant = Grant("ops", {Scope.ADMIN: ["*"]})
    make_call: Any = PageCall
    return await ACTIONS[name](make_call(served, grant, (), form, None, read_only=False))


# Python


def signatures() -> Iterator[str]:
    """Yield what the public modules export; errors have a file of their own."""
    # All of them first: an import may come with the use of a name.
    exports = {
        module.__name__: {name: getattr(module, name) for name in sorted(module.__all__)}
        for module in MODULES
    }
    homes: dict[int, str] = {}
    for module, names in exports.items():
        yield f"# {module}"
        for name, thing in names.items():
            home = homes.setdefault(id(thing), f"{module}.{name}")
            if home != f"{module}.{name}":
                yield f"{name} = {home}"
            elif isinstance(thing, types.ModuleType):
                yield f"module {name}"
            elif isinstance(thing, type):
                if not issubclass(thing, errors.HeadwaterError):
                    yield from _class(name, thing)
            elif callable(thing):
                yield from _callable(name, thing)
        yield ""


def _class(name: str, kind: type) -> Iterator[str]:
    bases = [base.__name__ for base in kind.__mro__[1:-1] if _is_public(base)]
    yield f"class {name}({', '.join(bases)}){_constructor(kind)}  {_sentence(kind.__doc__)}"
    if issubclass(kind, enum.Enum):
        yield from (f"  {one.name} = {one.value!r}" for one in kind)
        return
    for member in sorted(dir(kind)):
        owner = next((base for base in kind.__mro__ if member in vars(base)), object)
        if not owner.__module__.startswith("headwater"):
            continue
        if not member.startswith("_") or _CALLED_BY_PYTHON.fullmatch(member):
            lines = _member(member, vars(owner)[member], kind)
            yield from (f"  {_without_variables(line, kind)}" for line in lines)


def _without_variables(line: str, kind: type) -> str:
    """Return a line with what the type variables of generic bases stand for in a class."""
    head, returns, doc = line.partition("  ")
    for base in getattr(kind, "__orig_bases__", ()):
        variables = getattr(typing.get_origin(base), "__parameters__", ())
        for variable, meant in zip(variables, typing.get_args(base), strict=False):
            head = re.sub(rf"\b{variable.__name__}\b", _meant(meant), head)
    return head + returns + doc


def _meant(kind: Any) -> str:
    text = _annotation(kind)
    if "Spelling.OFFSETS_BY_PARTITION" in text:
        return "GivenInTopic"
    return "GivenOffsets" if "Spelling.OFFSETS" in text else text.replace("~D", "D")


def _is_public(kind: type) -> bool:
    return kind.__module__ == "builtins" or any(
        getattr(module, kind.__name__, None) is kind
        for module in MODULES
        if kind.__name__ in module.__all__
    )


def _constructor(kind: type) -> str:
    """Return the parameters of a class, unless Python or a client of ours makes its objects."""
    maker = next(base for base in kind.__mro__ if {"__init__", "__new__"} & set(vars(base)))
    is_struct = issubclass(kind, msgspec.Struct)
    if issubclass(kind, enum.Enum) or (maker.__module__ == "builtins" and not is_struct):
        return ""
    signature = inspect.signature(kind).replace(return_annotation=inspect.Signature.empty)
    return "" if "handle" in signature.parameters else f" {_signature(signature)}"


def _member(name: str, member: Any, kind: type) -> Iterable[str]:
    if isinstance(member, property | functools.cached_property):
        read: Any = member.fget if isinstance(member, property) else member.func
        shown = _annotation(inspect.signature(read).return_annotation)
        return [f"{name}: {shown}  {_sentence(member.__doc__)}"]
    if isinstance(member, classmethod | staticmethod):
        return [f"@{type(member).__name__} {line}" for line in _callable(name, member.__func__)]
    if callable(member):
        return _callable(name, member)
    # A field of a named tuple, a dataclass or a struct, which the constructor shows.
    return [] if name in getattr(kind, "__annotations__", {}) else [f"{name} = {_default(member)}"]


def _callable(name: str, call: Any) -> Iterator[str]:
    start = "async def" if inspect.iscoroutinefunction(call) else "def"
    for form in typing.get_overloads(call):
        yield f"@overload {start} {name}{_signature(inspect.signature(form))}"
    yield f"{start} {name}{_signature(inspect.signature(call))}  {_sentence(call.__doc__)}"


class _Bare(str):
    """A text that a signature shows without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def _signature(signature: inspect.Signature) -> str:
    """Return a signature as its source has it, without ``self``."""
    parameters = [
        one.replace(
            annotation=_bare(_annotation, one.annotation), default=_bare(_default, one.default)
        )
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    returned = _bare(_annotation, signature.return_annotation)
    return str(signature.replace(parameters=parameters, return_annotation=returned))


def _bare(show: Callable[[Any], str], thing: Any) -> Any:
    return thing if thing is inspect.Parameter.empty else _Bare(show(thing))


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    shown = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    shown = re.sub(r"\bUnpack\[(\w+)\]", _options, shown)
    return re.sub(r"\b(headwater|typing|collections|datetime|pathlib)(\.[a-z_]+)*\.", "", shown)


def _options(unpacked: re.Match[str]) -> str:
    """Return the options of a typed dict, whose own name nobody sees."""
    modules = [module for name, module in sys.modules.items() if name.startswith("headwater.")]
    kind = next(vars(module)[unpacked[1]] for module in modules if unpacked[1] in vars(module))
    options = sorted(kind.__annotations__.items())
    return f"{{{', '.join(f'{name}: {_annotation(option)}' for name, option in options)}}}"


def _default(default: Any) -> str:
    """Return a default; objects without a spelling of their own have their type's name."""
    if isinstance(default, enum.Enum):
        return f"{type(default).__name__}.{default.name}"
    shown = str(getattr(default, "__name__", repr(default)))
    return f"<{type(default).__name__}>" if " at 0x" in shown else shown


# Errors


def error_tree() -> Iterator[str]:
    """Yield every error with its facts, and what each door makes of it."""
    for _, kind in inspect.getmembers(errors, inspect.isclass):
        bases = ", ".join(base.__name__ for base in kind.__bases__)
        yield f"{kind.__name__}({bases}){_constructor(kind)}"
        yield f"  {_sentence(kind.__doc__)}"
        error: Any = kind.__new__(kind)
        code = error_reply(error).code
        error.lasting = True
        if (lasting := error_reply(error).code) != code:
            code = f"{code}, or {lasting} if it is lasting"
        yield f"  HTTP {status_of(error)}; RESP {code}; CLI {_exit_code(error)}"


def _exit_code(error: errors.HeadwaterError) -> int:
    """Return the code with which a command exits that raises an error."""

    def fail() -> None:
        raise error

    program = bare_root()
    program.command()(fail)
    return CliRunner().invoke(program, ["fail"]).exit_code


# All doors


def operations() -> Iterator[str]:
    """Yield every declared operation with what each door has of it; its last line counts."""
    rows = catalogue(asyncio=True)
    by_hand = sum(len(one.row.override) for one in rows)
    yield f"{'operation':28} {'command line':14} {'HTTP':10} {'RESP':10}"
    for one in rows:
        places = [
            "by hand" if door in one.row.override else "absent" if door in one.row.absent else "yes"
            for door in DOORS
        ]
        reasons = "; ".join(f"{door}: {reason}" for door, reason in one.row.absent.items())
        yield f"{one.id:28} {places[0]:14} {places[1]:10} {places[2]:10} {reasons}".rstrip()
    yield f"{by_hand} of {len(rows) * len(DOORS)} places are written by hand"


GOLDENS: dict[str, Callable[[], Iterable[str]]] = {
    "openapi.json": openapi,
    "help.txt": command_help,
    "commands.txt": commands,
    "console_actions.txt": console_actions,
    "signatures.txt": signatures,
    "errors.txt": error_tree,
    "operations.txt": operations,
}


def golden(name: str) -> str:
    """Return what a file should hold by the code as it is now."""
    return "\n".join(line.rstrip() for line in GOLDENS[name]()).rstrip("\n") + "\n"


def by_hand() -> str:
    """Return how many places of operations in doors are written by hand, and of how many."""
    return golden("operations.txt").splitlines()[-1].partition(" are ")[0]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name in GOLDENS:
        (FOLDER / name).write_text(golden(name), "utf-8")
    page = ARCHITECTURE.read_text("utf-8")
    ARCHITECTURE.write_text(re.sub(r"\d+ of \d+ places", by_hand(), page), "utf-8")
