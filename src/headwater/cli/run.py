"""``headwater run``: runs an application, restarts its processes, and shows what they do."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headwater.cli import output
from headwater.cli.options import StoreUrl, duration_ms, refused, size_bytes
from headwater.errors import AppRefused

if TYPE_CHECKING:
    from headwater.app.processes import Checked
    from headwater.app.supervisor import RunPlan, Supervisor


@contextmanager
def logged_lines(logger: str) -> Iterator[None]:
    """Print the warnings and errors of a logger, each as one line, while the block runs."""

    def show(record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        output.warn(f"{record.getMessage()}: {error}" if error else record.getMessage())

    with _handled(logging.getLogger(logger), logging.WARNING, show):
        yield


@contextmanager
def _handled(
    logger: logging.Logger, level: int, show: Callable[[logging.LogRecord], None]
) -> Iterator[None]:
    handler = logging.Handler(level)
    handler.emit = show  # type: ignore[assignment]
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


_BAD_APP = 2
# Less than any process uses before its first message: such a limit would replace it for ever.
_LEAST_MEMORY = 50_000_000


def run(
    target: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:APP", help="Where the App is, as shop.jobs:app.", show_default=False
        ),
    ],
    only: Annotated[
        list[str] | None,
        typer.Option("--only", metavar="PART", help="Run only this part; may be repeated."),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--except", metavar="PART", help="Do not run this part; may be repeated."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, max=64, metavar="N", help="Run the workers in N processes.")
    ] = 1,
    drain: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="How long running handlers may take to finish after a signal."
        ),
    ] = "30s",
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Replace a process that uses more, after it is drained.",
            show_default=False,
        ),
    ] = None,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="ADDR",
            help="Serve /metrics, /healthz and /readyz at this host and port.",
            show_default=False,
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="HEADWATER_TOKENS",
            help="The file of tokens, made by `headwater token`; /metrics then needs one of them. "
            "Without it, --http listens on the loopback only.",
            show_default=False,
        ),
    ] = None,
    log: Annotated[
        Literal["text", "json"], typer.Option("--log", help="How log lines are written.")
    ] = "text",
    view: Annotated[
        bool | None,
        typer.Option(
            "--view/--no-view",
            help="Show rates, lag and failures of each part; default: on a terminal.",
            show_default=False,
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Restart when a file of the application changes."),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check the parts; exit with 2 if one cannot run.")
    ] = False,
    store: StoreUrl = None,
    db: Annotated[
        str | None,
        typer.Option(
            "--db",
            metavar="URL",
            help="The database, instead of that of the App.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Run the parts of an application until Ctrl-C or SIGTERM.

    All parts are checked first: problems are listed, and the exit code is 2. A part or a process
    that dies is started again. After either signal, running handlers have --drain to finish; what
    is not done is returned at once, and the exit code is 0. A second signal ends that wait.
    """
    from headwater.app.supervisor import RunPlan, Supervisor

    console = output.console()
    watched = console.is_terminal if view is None else view
    plan = RunPlan(
        target, store, db, tuple(only or ()), tuple(without or ()), workers,
        duration_ms(drain, "--drain"), 0 if max_memory is None else _memory_limit(max_memory),
        log, reload,
        watched=watched or http is not None,
    )  # fmt: skip
    if check:
        found = Supervisor(plan, _list_faults).check()
        _list_faults(found)
        if any(fault.fatal for fault in found.faults):
            raise typer.Exit(_BAD_APP)
        output.say(f"{target}: all parts can run")
        return
    try:
        with ExitStack() as opened:
            _run(plan, http, tokens, watched, opened)
    except AppRefused:
        # What is wrong was listed.
        raise typer.Exit(_BAD_APP) from None


def _memory_limit(word: str) -> int:
    size = size_bytes(word, "--max-memory")
    if size < _LEAST_MEMORY:
        raise refused(
            f"{word} is less than an idle process uses; give 50MB or more, with the unit, as 512MB",
            "--max-memory",
        )
    return size


def _run(
    plan: RunPlan, http: str | None, tokens: Path | None, watched: bool, opened: ExitStack
) -> None:
    """Run a plan, with what is opened beside it."""
    from headwater.app.supervisor import Supervisor

    lines = _Lines(output.warn)
    counts = None
    if http is not None:
        file = tempfile.TemporaryFile(prefix="headwater-counts-")  # noqa: SIM115  it is entered
        counts = opened.enter_context(file).fileno()
    opened.enter_context(_logged(plan, lines))
    supervisor = Supervisor(plan, _list_faults, lines if watched else None, counts)
    if http is not None:
        opened.enter_context(_answering(supervisor, http, tokens, counts))
    if watched:
        from headwater.cli.screens import RunView, shown

        view = RunView(
            f"headwater run {plan.target}", supervisor.parts, lambda: supervisor.draining
        )
        console = output.console()
        lines.to(opened.enter_context(shown(view, console)))
    supervisor.run()


class _Lines:
    """Prints a line wherever lines go now."""

    def __init__(self, printer: Callable[[str], object]) -> None:
        self._print = printer

    def __call__(self, line: str) -> None:
        self._print(line)

    def to(self, printer: Callable[[str], object]) -> None:
        """Print by another way from now on."""
        self._print = printer


@contextmanager
def _logged(plan: RunPlan, lines: Callable[[str], None]) -> Iterator[None]:
    """Print what the supervisor itself logs in the same form as its processes."""
    from headwater.app.log_lines import LineFormatter

    form = LineFormatter("json" if plan.log == "json" else "text", None, {})
    logger = logging.getLogger("headwater")
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with _handled(logger, logging.INFO, lambda record: lines(form.format(record))):
            yield
    finally:
        logger.setLevel(level)


@contextmanager
def _answering(
    supervisor: Supervisor, http: str, tokens: Path | None, counts: int | None
) -> Iterator[None]:
    """Answer those who watch, at one port for all processes."""
    from headwater.kernel.packaging import extra_needed

    with extra_needed("serve"):
        from headwater.app.monitoring import watched
        from headwater.serve.listening import parse_address
    from headwater.serve.tokens import TokenFile

    known = None if tokens is None else TokenFile(tokens)
    with watched(supervisor, parse_address(http), known, counts) as url:
        output.warn(f"metrics on {url}/metrics")
        yield


def _list_faults(checked: Checked) -> None:
    for fault in checked.faults:
        output.warn(f"{'error' if fault.fatal else 'warning'}: {fault}")
