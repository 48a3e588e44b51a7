"""Commands that are derived from the catalogue: open, call, say.

The address comes first, as arguments, then what the method takes by position; what it takes by
name is an option. Members with scores are arguments, or lines of standard input; documents are
lines of it, and the operation is done for each. The table in ``declared.py`` is made of the
catalogue, so that help needs no client; a command that runs finds its operation in the catalogue
itself.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, get_type_hints

import typer

from headwater import views
from headwater.cli import options, output
from headwater.cli.options import AsJson, DatabaseUrl, StoreUrl, Yes, confirm, keyword
from headwater.doors.catalogue import Kind
from headwater.errors import InvalidInput
from headwater.kernel.declaring import Spelling
from headwater.kernel.inputs import Limits

if TYPE_CHECKING:
    from headwater.doors.catalogue import Declared
    from headwater.doors.replies import Counted

DOOR: Final = "command line"
# Opens an object that exists, by the URL of the store and the names of its address.
Opened = Callable[..., AbstractContextManager[Any]]
# Prints what an operation on an object returned, as JSON if that is asked for.
Shown = Callable[[Any, Any, bool], None]

_TYPES: Final[dict[str, Any]] = {"int": int, "bool": bool, "str": str, "float": float}
_EXPLAINED: Final = {"key": "Key of the Ick, as redis-ick spells it."}
_METAVARS: Final = {
    Spelling.OFFSETS.value: "OFFSET...",
    Spelling.OFFSETS_BY_PARTITION.value: "OFFSET...",
    Spelling.POSITION.value: "TO",
    Spelling.MEMBERS.value: "MEMBER...",
    Spelling.TIME.value: "TIME",
}
_STEPS: Final = (
    "An offset, first, last, a time like 2030-01-31T12:00:00Z, or -1000 or +1000: so many "
    "messages back or on from the present position."
)
_EXAMPLES: Final = {
    Spelling.SPAN.value: " As 7d, 12h, 30m, 45s or 500ms.",
    Spelling.SIZE.value: " As 1000000, 500MB or 2GiB.",
    Spelling.TIME.value: " As 2030-01-31T12:00:00Z.",
}
SHORT_OPTIONS: Final = {"count": ("-c",)}
_TIMES: Final = {"until_ms": "until"}
_Members = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MEMBER]...",
        help="Members; without any, the lines of standard input.",
        show_default=False,
    ),
]
_Score = Annotated[
    float | None,
    typer.Option(help="The score of all of them. Default: this machine's time in seconds."),
]
_EMPTY: Final = inspect.Parameter.empty
_LAST: Final = (keyword("store", StoreUrl, None), keyword("as_json", AsJson, False))


class Word(NamedTuple):
    """An argument or an option of a command; see Param and Parameter for what its fields mean."""

    called: str
    option: str
    kind: str = "str"
    shape: str = Spelling.PLAIN.value
    help: str = ""
    metavar: str = ""
    least: int | None = None
    most: int | None = None
    default: int | str | bool | None = None
    required: bool = False
    variadic: bool = False
    keyword: bool = False
    optional: bool = False


class Declaration(NamedTuple):
    """A command: its name, the operation it calls, its help, and whether it asks before.

    One that is written by hand may take the words of its operation; see ``taking``.
    """

    name: str
    verb: str
    help: str
    asks: bool
    words: list[Word]
    by_hand: bool = False


def add_commands(app: typer.Typer, kind: Kind, opened: Opened, **shown: Shown) -> None:
    """Add a command to a group of commands for each operation of a kind.

    ``shown`` are operations whose results are printed by hand, as tables.
    """
    for declaration in _declared(kind):
        show = shown.get(declaration.verb)
        if declaration.by_hand and show is None:
            continue
        steps = any(word.shape == Spelling.POSITION.value for word in declaration.words)
        settings = options.TAKES_STEPS if steps else None
        run = _command(declaration, kind, opened, show)
        app.command(declaration.name, context_settings=settings)(run)


def _declared(kind: Kind) -> list[Declaration]:
    from headwater.cli.declared import DECLARED

    return DECLARED[kind.name]


def _command(
    declaration: Declaration, kind: Kind, opened: Opened, show: Shown | None
) -> Callable[..., None]:
    keys = kind.keys

    def run(store: str | None, as_json: bool, yes: bool = False, **words: Any) -> None:
        operation = kind.operation(declaration.verb)
        names = [words.pop("name"), *(words.pop(key) for key in keys[1:])]
        beside = {"db": words.pop("db")} if kind.database else {}
        given = _given(declaration, words)
        beside |= operation.wishes(given)
        with opening(operation, opened)(store, *names, **beside) as target:
            for called, value in given.items():
                if isinstance(value, options.Steps):
                    given[called] = options.from_here(value, target.info().next)
            if operation.row.asks and not any(name in given for name in operation.row.unless):
                facts = dict(zip(keys, names, strict=True))
                state = _Sums(state_of(kind, target))
                confirm(operation.row.asks.format(info=state, **facts), yes)
            names += [given[key] for key in operation.in_path]
            for one in _documents(operation):
                value = operation.call(target, {**given, **one})
                if operation.yields:
                    value = list(islice(value, given["count"]))
                if show is not None:
                    show(target, value, as_json)
                else:
                    answer(operation, names, value, as_json)

    parameters = [one for word in declaration.words for one in _parameters(word)]
    if declaration.asks:
        parameters.append(keyword("yes", Yes, False))
    if kind.database:
        parameters.append(keyword("db", DatabaseUrl, _EMPTY))
    parameters += _LAST
    run.__name__, run.__doc__ = f"{declaration.verb}_{kind.name}", declaration.help
    return addressed(run, kind, parameters)


def addressed(
    run: Callable[..., None], kind: Kind, parameters: Sequence[inspect.Parameter]
) -> Callable[..., None]:
    """Return a function as a command on an object: behind its address come these parameters."""
    address = [_named(key, at) for at, key in enumerate(kind.keys)]
    return options.with_parameters(run, [*address, *parameters])


def taking(
    kind: Kind, verb: str, *without: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Have a command that is written by hand take the options of an operation, by keyword."""
    declaration = next(one for one in _declared(kind) if one.verb == verb)
    words = [word for word in declaration.words if word.called not in without]
    declaration = declaration._replace(words=words)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(command, include_extras=True)
        name, *own = (
            keyword(one.name, hints[one.name], one.default)
            for one in inspect.signature(command).parameters.values()
            if one.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD
        )

        def run(**words: Any) -> None:
            given = _given(declaration, words)
            command(**{one.name: words[one.name] for one in (name, *own)}, **given)

        parameters = [name, *(one for word in declaration.words for one in _parameters(word)), *own]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return options.with_parameters(run, parameters)

    return decorate


def _given(declaration: Declaration, words: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was typed for the words of an operation, as ``Declared.call`` takes it."""
    given = {
        word.called: _value(word, words[word.called])
        for word in declaration.words
        if word.called in words and words[word.called] not in (None, [])
    }
    for word in declaration.words:
        if word.shape == Spelling.SCORES.value:
            given[word.called] = _scores(words[word.called], words["score"])
    return given


def _scores(members: list[str] | None, score: float | None) -> dict[str | bytes, float]:
    """Return the members, or the lines of standard input as members, with their score."""
    when = time.time() if score is None else score
    if members:
        return dict.fromkeys(members, when)
    return {line.rstrip(b"\r\n"): when for line in sys.stdin.buffer}


def _documents(operation: Declared) -> Iterator[dict[str, Any]]:
    """Yield a document for each line of standard input; once nothing, where none is taken."""
    documents = [one for one in operation.parameters if one.says.shape is Spelling.DOCUMENT]
    if not documents:
        yield {}
        return
    from headwater.views.record import view_of

    (document,) = documents
    for line in sys.stdin.buffer:
        try:
            yield {document.called: view_of(document.kind).from_json(line).original()}
        except ValueError as error:
            raise InvalidInput(
                f"standard input is not what `headwater {operation.kind.command} reserve --json` "
                f"prints ({error}); give that, a document a line"
            ) from None


def answer(operation: Declared, names: Sequence[str], value: Any, as_json: bool) -> None:
    """Print what an operation on the object of that address returned: a sentence, or a table."""
    from headwater.doors.replies import reply, sentence

    if operation.rows is not None and not operation.row.says:
        _show_rows(operation, value, as_json)
        return
    made = reply(operation, names, value)
    if not (operation.row.says or as_json):
        output.show_facts(made.facts().items())
        return
    output.answer(made, sentence(operation, names, value), as_json)


def _show_rows(operation: Declared, rows: Sequence[Any], as_json: bool) -> None:
    from headwater.views.record import shown_as

    view, show = shown_as(operation.rows)
    assert show is not None, f"{operation.id} returns no records"
    if as_json:
        output.show_json(*map(show, rows))
        return
    if not rows:
        output.say(operation.row.says_not)
        return
    headings = [*get_type_hints(view.mirrored())]
    table = [
        [
            output.time_text(fact) if name in _TIMES else fact
            for name, fact in zip(headings, row, strict=True)
        ]
        for row in rows
    ]
    output.show_table([_TIMES.get(name, name) for name in headings], table, fold=len(headings))


def opening(operation: Declared, opened: Opened) -> Opened:
    """Return what opens the object of an operation, which need not exist if it may create it."""
    return partial(_opened, operation.kind) if operation.row.creates else opened


@contextmanager
def _opened(kind: Kind, url: str | None, *names: str, **wishes: Any) -> Iterator[Any]:
    with options.connected(url) as hw:
        yield kind.open(hw, *names, **wishes)


@contextmanager
def known(kind: Kind, url: str | None, name: str, **wishes: Any) -> Iterator[Any]:
    """Yield an object that exists; raises what says that it does not, and which name is near."""
    with options.connected(url) as hw:
        target = kind.open(hw, name, **wishes)
        if not kind.exists(state_of(kind, target)):
            raise kind.unknown(name, options.similar(name, kind.every(hw)))
        yield target


def state_of(kind: Kind, target: Any) -> Any:
    """Return the state of an object; of one with partitions, of each."""
    return getattr(target, kind.state)()


class _Sums:
    """What is known of an object, as numbers; of one with partitions, of all of them."""

    def __init__(self, info: Any) -> None:
        self._parts = info if isinstance(info, list) else [info]

    def __getattr__(self, name: str) -> Counted:
        from headwater.doors.replies import Counted

        facts = [
            part[name] if isinstance(part, dict) else getattr(part, name) for part in self._parts
        ]
        if all(isinstance(fact, int) for fact in facts):
            return Counted(sum(facts))
        return Counted(len(set().union(*facts)))


def _named(key: str, at: int) -> inspect.Parameter:
    """Return the parameter of a name of the address; completion knows the first as ``name``."""
    argument = options.name_argument(key, _EXPLAINED.get(key, ""))
    return keyword(key if at else "name", Annotated[str, argument], _EMPTY)


def _parameters(word: Word) -> Iterator[inspect.Parameter]:
    if word.shape == Spelling.SCORES.value:
        yield keyword(word.called, _Members, None)
        yield keyword("score", _Score, None)
    elif word.shape != Spelling.DOCUMENT.value:
        yield _parameter(word)


def _parameter(word: Word) -> inspect.Parameter:
    kind = _TYPES[word.kind]
    metavar = _METAVARS.get(word.shape, word.metavar or None)
    if word.shape == Spelling.TEXTS.value:
        metavar = f"{metavar}..."
    help = word.help + _EXAMPLES.get(word.shape, "")
    if word.shape == Spelling.POSITION.value:
        help = _STEPS
    if word.variadic or (word.required and not word.keyword):
        metavar = metavar or word.called.upper()
        note: Any = typer.Argument(metavar=metavar, help=help, show_default=False)
        if word.variadic and not word.required:
            return keyword(word.called, Annotated[list[str] | None, note], None)
        return keyword(word.called, Annotated[list[str] if word.variadic else kind, note], _EMPTY)
    bounds: dict[str, Any] = {"min": word.least, "max": word.most} if kind is int else {}
    note = typer.Option(
        word.option,
        *SHORT_OPTIONS.get(word.called, ()),
        metavar=metavar,
        help=help,
        show_default=word.default is not None,
        **bounds,
    )
    kind = kind | None if word.optional else kind
    return keyword(word.called, Annotated[kind, note], _EMPTY if word.required else word.default)


def _value(word: Word, typed: Any) -> Any:
    """Return what was typed as the operation takes it."""
    match Spelling(word.shape):
        case Spelling.SPAN if typed is not None:
            return options.duration_ms(typed, word.option)
        case Spelling.SIZE if typed is not None:
            return options.size_bytes(typed, word.option)
        case Spelling.TIME if typed is not None:
            return int(options.point_in_time(typed, word.option).timestamp() * 1000)
        case Spelling.OFFSETS:
            return options.offsets(typed)
        case Spelling.OFFSETS_BY_PARTITION:
            return options.in_topic(typed)
        case Spelling.POSITION:
            return options.target(typed)
    return typed


_NoLimits = Annotated[bool, typer.Option("--none", help="Remove all limits.")]


def limit_command(kind: Kind, opened: Opened, *without: str) -> Callable[..., None]:
    """Return the command ``limit`` of a kind of object, without limits that it cannot keep."""
    declaration = next(one for one in _declared(kind) if one.verb == "limit")
    words = [word for word in declaration.words if word.called not in without]

    def limit(store: str | None, as_json: bool, none: bool, **typed: Any) -> None:
        """Show the limits, or set all of them: what is not named is not limited."""
        wanted = Limits(**{word.called: typed[word.called] for word in words})
        if wanted and none:
            raise typer.BadParameter("--none removes all limits; give it alone")
        names = [typed["name"], *(typed[key] for key in kind.keys[1:])]
        with opening(kind.operation("limit"), opened)(store, *names) as target:
            state = state_of(kind, target)
            limits = before = (state[0] if isinstance(state, list) else state).limits
            if wanted or none:
                limits, before = wanted, target.limit(wanted)
        done = views.queues.LimitsView(
            **dict(zip(kind.keys, names, strict=True)), limits=limits, before=before
        )
        change = "" if limits == before else f" (before: {before})"
        output.answer(done, f"limits: {limits}{change}", as_json)

    parameters = [*map(_parameter, words), keyword("none", _NoLimits, False), *_LAST]
    return addressed(limit, kind, parameters)
