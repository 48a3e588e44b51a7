"""The reference says of every public name, limit, error and function what is true of the code."""

from __future__ import annotations

import inspect
import json
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple, get_args

import msgspec
import pytest
import yaml  # type: ignore[import-untyped]
from markdown.extensions.toc import slugify
from typer.main import get_command
from typer.testing import CliRunner

import headwater
from headwater import errors, outbox, serve, testing, timeline
from headwater.app.running import RunningApp
from headwater.cli.main import app
from headwater.cli.program import spelled
from headwater.ick import keys as ick_limits
from headwater.kernel import instrument
from headwater.kernel.declaring import Scope
from headwater.log import keys
from headwater.metrics.exposition import FAMILIES, PREFIX
from headwater.queue import keys as queue_limits
from headwater.serve.api.routes import Router, document, status_of
from headwater.serve.api.table import ROUTES
from headwater.serve.http.messages import Refused
from headwater.serve.limits import RespLimits
from headwater.serve.resp import replies
from headwater.serve.resp.table import COMMANDS
from headwater.spark import icks, queues, timelines
from headwater.spark.log import source as log_source
from headwater.spark.sql_sink import source as sql_sink
from headwater.spark.tables import source as tables
from headwater.store import rights
from tests.support.http_reference import MARK, PAGE, generated
from tests.support.pages import ROOT, pages
from tools.generate_pages import resp_row

REFERENCE = ROOT / "docs" / "reference"
HANDLES = (
    headwater.Headwater,
    headwater.Stream,
    headwater.Group,
    headwater.Topic,
    headwater.TopicGroup,
    headwater.Ick,
    headwater.IckChannel,
    headwater.Worker,
    headwater.aio.AsyncWorker,
)
QUEUES = (headwater.Queue, headwater.QueueWorker)
PARTS_OF_THE_OUTBOX = (outbox.Outbox, outbox.Streamer, outbox.Consumer, outbox.AsyncConsumer)

PARTS_OF_TESTS = (testing.Drained, testing.PrivateStore, testing.StoreClock, testing.StoreFaults)


def signature(function: Any) -> str:
    """Spell how a method is called, as the reference does: names and defaults, no types."""
    found = inspect.signature(function)
    bare = [
        parameter.replace(annotation=inspect.Parameter.empty)
        for name, parameter in found.parameters.items()
        if name != "self"
    ]
    return str(inspect.Signature(bare))


def public_methods(kind: type) -> list[str]:
    """Return its own methods, and those of bases that are not shown by themselves."""
    owners = [
        base for base in kind.__mro__[:-1] if base is kind or not hasattr(headwater, base.__name__)
    ]
    return [
        name
        for owner in owners
        for name, found in vars(owner).items()
        if inspect.isfunction(found) and not name.startswith("_")
    ]


@pytest.mark.parametrize(
    ("kind", "page"),
    [(kind, "python.md") for kind in HANDLES]
    + [(kind, "queue.md") for kind in QUEUES]
    + [(kind, "app.md") for kind in (headwater.App, RunningApp)]
    + [(kind, "timed.md") for kind in (headwater.TimedRunner, headwater.TimedJobs)]
    + [(timeline.Farm, "timeline.md")]
    + [(kind, "outbox.md") for kind in PARTS_OF_THE_OUTBOX]
    + [(kind, "testing.md") for kind in PARTS_OF_TESTS],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_reference_tells_how_every_method_is_called(kind: type, page: str) -> None:
    text = (REFERENCE / page).read_text("utf-8")
    shown = kind.__name__.removeprefix("Running")
    for name in public_methods(kind):
        call = f"`{shown}.{name}{signature(getattr(kind, name))}`"
        assert call in text, f"{call} is not in docs/reference/{page}"


def test_the_reference_tells_how_an_asgi_application_is_made() -> None:
    text = (REFERENCE / "http.md").read_text("utf-8")
    assert f"`asgi_app{signature(serve.asgi_app)}`" in text


@pytest.mark.parametrize("kind", PARTS_OF_THE_OUTBOX, ids=lambda kind: str(kind.__name__))
def test_the_reference_tells_of_every_property(kind: type) -> None:
    text = (REFERENCE / "outbox.md").read_text("utf-8")
    found = [name for name, value in vars(kind).items() if isinstance(value, property)]
    assert [name for name in found if f"`{kind.__name__}.{name}`" not in text] == []


@pytest.mark.parametrize(
    ("module", "page"),
    [
        (headwater, "python.md"),
        (outbox, "outbox.md"),
        (testing, "testing.md"),
        (timeline, "timeline.md"),
        (serve, "http.md"),
    ],
    ids=["", "outbox", "testing", "timeline", "serve"],
)
def test_the_reference_tells_of_every_public_name(module: Any, page: str) -> None:
    text = (REFERENCE / page).read_text("utf-8") + (REFERENCE / "errors.md").read_text("utf-8")
    missing = [name for name in module.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not missing


@pytest.mark.parametrize(
    ("kind", "page"),
    [
        (headwater.StreamInfo, "python.md"),
        (headwater.GroupInfo, "python.md"),
        (headwater.Kept, "python.md"),
        (headwater.Retention, "python.md"),
        (headwater.QueueStats, "queue.md"),
        (headwater.QueueSettings, "queue.md"),
        (headwater.KeptQueue, "queue.md"),
        (headwater.TimedJobInfo, "timed.md"),
        (outbox.Status, "outbox.md"),
        (outbox.Checkpoint, "outbox.md"),
        (outbox.Progress, "outbox.md"),
        (outbox.ConsumerStats, "outbox.md"),
        (testing.DrainedPart, "testing.md"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_reference_tells_of_every_fact(kind: Any, page: str) -> None:
    text = (REFERENCE / page).read_text("utf-8")
    missing = [name for name in kind.__dataclass_fields__ if f"`{name}`" not in text]
    assert not missing


def test_the_reference_tells_of_all_that_an_instrument_is_given() -> None:
    text = (REFERENCE / "instrument.md").read_text("utf-8")
    names = [*instrument.Event._fields, *get_args(instrument.Outcome)]
    names += [name for name in vars(instrument.Instrument) if not name.startswith("_")]
    assert [name for name in names if not re.search(rf"^\| `{name}\b", text, re.MULTILINE)] == []


def test_the_reference_states_every_limit() -> None:
    page = (REFERENCE / "limits.md").read_text("utf-8")
    stated = dict(re.findall(r"^\| `([A-Z_]+)` \| ([\d,]+)", page, flags=re.MULTILINE))
    held = {
        name: f"{number:,}"
        for module in (keys, ick_limits)
        for name, number in vars(module).items()
        if name.isupper() and not name.startswith("_") and isinstance(number, int)
    }
    assert stated == held


def test_the_reference_states_every_limit_of_queues() -> None:
    page = (REFERENCE / "queue.md").read_text("utf-8")
    stated = dict(re.findall(r"^\| `([A-Z_]+)` \| ([\d,]+)", page, flags=re.MULTILINE))
    numbers = {k: n for k, n in vars(queue_limits).items() if k.isupper() and isinstance(n, int)}
    held = {name: f"{n:,}" for name, n in numbers.items()}
    assert stated == {name: number for name, number in held.items() if name != "MAX_EXACT"}


def test_the_reference_draws_the_tree_of_errors() -> None:
    branches = re.compile(r"^[ │]*[├└]── (\w+) +(.+)$", flags=re.MULTILINE)
    drawn = branches.findall((REFERENCE / "errors.md").read_text("utf-8"))
    tree = branches.findall(errors.__doc__ or "")
    assert tree
    assert [branch for branch in tree if branch not in drawn] == []


@pytest.mark.parametrize("cluster", [False, True])
def test_the_rights_that_a_user_needs_are_listed(cluster: bool) -> None:
    page = (ROOT / "docs" / "how-to" / "own-server.md").read_text("utf-8")
    listed = set(re.sub(r"[`\\.]", " ", page).split())
    assert set(rights.rules(cluster).split()) <= listed


def test_the_reference_states_which_releases_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = {"all": project["dependencies"], **project["optional-dependencies"]}
    allowed = {
        (name, extra if extra == "all" else f"`[{extra}]`", bounds)
        for extra, lines in asked.items()
        for line in lines
        for name, bounds in re.findall(r"^([\w-]+)(?:\[\w+\])?([<>=][^;]*)", line)
    }
    page = (REFERENCE / "versions.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\S+) \| `([^`]+)` \| \d", page, re.MULTILINE)
    assert set(rows) == allowed


def test_every_page_of_the_site_is_in_its_contents() -> None:
    contents = (ROOT / "mkdocs.yml").read_text("utf-8")
    site = ROOT / "docs"
    assert [
        str(page.relative_to(site))
        for page in site.rglob("*.md")
        if str(page.relative_to(site)) not in contents
    ] == []


def test_every_decision_is_in_the_list_of_decisions() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "index.md").read_text("utf-8")
    assert [page.name for page in folder.glob("0*.md") if f"({page.name})" not in listed] == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, spelled as mkdocs does."""
    text = re.sub(
        r'--8<-- "(.+)"',
        lambda found: (ROOT / found[1]).read_text("utf-8"),
        page.read_text("utf-8"),
    )
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {slugify(re.sub(r"[`*]", "", heading), "-") for heading in headings}


def test_every_link_between_pages_leads_somewhere() -> None:
    broken = []
    for page in [*pages(), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]:
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
            path, _, anchor = target.partition("#")
            found = page.parent / path if path else page
            if "://" in target or (found.exists() and (not anchor or anchor in anchors(found))):
                continue
            broken.append(f"{page.relative_to(ROOT)}: {target}")
    assert not broken, "\n".join(broken)


# ── The reference of the command line describes every command, argument, option and default ──────
# And no other: what it names is there.


CLI_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"
SHARED = "What all commands share"
# The one command that takes the options of another group: those of a farm.
BORROWED = {"headwater spark walk": "headwater timeline"}
# Set by a command for what it starts, or read by the library.
OTHER_VARIABLES = {"HEADWATER_ID", "HEADWATER_ATTEMPT", "HEADWATER_URL"}


class Flag(NamedTuple):
    """An option of a command: all its spellings, its default as text, its variable."""

    spellings: frozenset[str]
    default: str | None
    variable: str | None
    required: bool


class Usage(NamedTuple):
    """What a command takes."""

    arguments: str
    flags: list[Flag]


def usages(command: Any, name: str = "headwater") -> Iterator[tuple[str, Usage]]:
    """Yield every command with what it takes."""
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from usages(inner, f"{name} {word}")
        return
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option"]
    yield name, Usage(" ".join(map(spelled, arguments)), [flag_of(option) for option in options])


def flag_of(option: Any) -> Flag:
    default = getattr(option.default, "value", option.default)
    said = None if default in (None, False, ()) or option.is_flag else str(default)
    spellings = frozenset((*option.opts, *option.secondary_opts))
    return Flag(spellings, said, option.envvar, option.required)


class Row(NamedTuple):
    """A row of a table of options: the options that it names, and all of its text."""

    spellings: frozenset[str]
    text: str


def sections(page: str) -> dict[str, tuple[str, list[Row]]]:
    """Return the sections of a page by their titles: the text and the rows of options of each."""
    parts = re.split(r"^#{2,3} ([^\n]*)$", page, flags=re.MULTILINE)[1:]
    return {
        title: (text, [row_of(row) for row in re.findall(r"^\| `--.*$", text, re.MULTILINE)])
        for title, text in zip(parts[::2], parts[1::2], strict=True)
    }


def row_of(row: str) -> Row:
    names = re.findall(r"`(-[^` ]+)[^`]*`", row.partition(" | ")[0])
    return Row(frozenset(names), row)


def differences(page: str) -> list[str]:
    """Return everything in which a page and the command line differ."""
    told, real = sections(page), dict(usages(get_command(app)))
    described = {title for title in told if title.startswith("headwater ")}
    groups = {" ".join(name.split()[:2]) for name in real if len(name.split()) > 2}
    found = [f"no section: {name}" for name in real if name not in described]
    found += [f"no such command: {name}" for name in described - set(real) - groups]
    for name in set(real) & described:
        found += command_faults(name, real[name], told, groups)
    for group in groups & set(told):
        inner = [real[name] for name in real if name.startswith(f"{group} ")]
        known = {spelling for one in inner for flag in one.flags for spelling in flag.spellings}
        for row in told[group][1]:
            found += [f"{group}: no command takes {one}" for one in row.spellings - known]
    variables = {flag.variable for usage in real.values() for flag in usage.flags}
    variables |= {getattr(option, "envvar", None) for option in get_command(app).params}
    named = set(re.findall(r"HEADWATER_\w+", page))
    return found + [f"no such variable: {one}" for one in named - variables - OTHER_VARIABLES]


def command_faults(
    name: str, usage: Usage, told: dict[str, tuple[str, list[Row]]], groups: set[str]
) -> Iterator[str]:
    text, own = told[name]
    above = [title for title in (SHARED, *groups) if f"{name} ".startswith(f"{title} ")]
    above += [SHARED, *([BORROWED[name]] if name in BORROWED else [])]
    rows = own + [row for title in above if title in told for row in told[title][1]]
    if usage.arguments and f"`{name} {usage.arguments}`" not in text.partition("|")[0]:
        yield f"{name}: the text does not show `{name} {usage.arguments}`"
    for flag in usage.flags:
        spelling = min(flag.spellings)
        row = next((row for row in rows if flag.spellings <= row.spellings), None)
        if row is None:
            yield f"{name}: no row for {'/'.join(sorted(flag.spellings))}"
            continue
        if flag.default is not None and f"`{flag.default}`" not in row.text:
            yield f"{name}: {spelling} has the default {flag.default}"
        if flag.variable and f"${flag.variable}" not in row.text:
            yield f"{name}: {spelling} is read from ${flag.variable}"
        if flag.required and "required" not in row.text:
            yield f"{name}: {spelling} is required"
    taken = {spelling for flag in usage.flags for spelling in flag.spellings}
    for row in own:
        yield from (f"{name}: does not take {one}" for one in row.spellings - taken)


def test_the_reference_and_the_command_line_say_the_same() -> None:
    assert differences(CLI_PAGE.read_text()) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("### headwater stream tail\n", "", "no section: headwater stream tail"),
        ("### headwater stream tail\n", "### headwater stream tial\n", "no such command"),
        (
            "| `--lines N`, `-n` |",
            "| `--lines N` |",
            "headwater stream tail: no row for --lines/-n",
        ),
        ("| `--keep N` |", "| `--kept N` |", "headwater stream evict: does not take --kept"),
        ("N messages; default `10000`", "N messages", "--messages has the default 10000"),
        ("`$HEADWATER_INSTANCES`", "`$HEADWATER_FARM`", "is read from $HEADWATER_INSTANCES"),
        ("`$HEADWATER_INSTANCES`", "`$HEADWATER_FARM`", "no such variable: HEADWATER_FARM"),
        ("| `--max-size N` |", "| `--max-sizes N` |", "no command takes --max-sizes"),
        ("run by a shell; required", "run by a shell", "--exec is required"),
        ("stream seek STREAM GROUP TO`", "stream seek STREAM GROUP`", "does not show"),
        ("| `--json` |", "| `--jsonl` |", "no row for --json"),
    ],
)
def test_a_page_that_is_wrong_is_found(before: str, after: str, fault: str) -> None:
    page = CLI_PAGE.read_text()
    assert before in page
    assert any(fault in found for found in differences(page.replace(before, after)))


def shown_help(*words: str) -> str:
    return CliRunner().invoke(app, [*words, "--help"], env={"COLUMNS": "120"}).stdout


def test_help_shows_words_that_a_person_may_type() -> None:
    shown = shown_help("stream", "ack")
    assert "headwater stream ack [OPTIONS] STREAM GROUP OFFSET...\n" in plain(shown)
    for words in (("queue", "configure"), ("stream", "write"), ("timeline", "serve"), ()):
        text = shown_help(*words).partition("─ Options ")[2]
        assert text
        assert not re.search(r"<\w+( range)?>", text), words


def plain(shown: str) -> str:
    return re.sub(r" +\n", "\n", shown).replace("root ", "headwater ")


def test_the_page_names_the_commands_without_json() -> None:
    text = sections(CLI_PAGE.read_text())["JSON"][0]
    named = re.search(r"Commands without `--json`: (.*?)\.\n", text, re.DOTALL)
    assert named
    without = {
        name.removeprefix("headwater ")
        for name, usage in usages(get_command(app))
        if not any("--json" in flag.spellings for flag in usage.flags)
    }
    assert set(re.findall(r"`([^`]+)`", named[1])) == without


# ── The reference of Spark describes every option of every format, and no other ──────────────────


SPARK_PAGE = Path(__file__).parents[2] / "docs" / "reference" / "spark.md"


def read_and_written(read: Iterable[str], written: Iterable[str]) -> dict[str, str]:
    """Say of each option where it may stand."""
    where = dict.fromkeys(read, "read") | dict.fromkeys(written, "write")
    return where | dict.fromkeys(set(read) & set(written), "both")


# Each table of options, in the order of the page, and where its options may stand.
TABLES = {
    "read of a log": dict.fromkeys(log_source.READ_OPTIONS, "both")
    | dict.fromkeys(log_source._BATCH_ONLY, "batch")
    | dict.fromkeys(log_source._STREAM_ONLY, "streaming"),
    "write to a log": dict.fromkeys(log_source.WRITE_OPTIONS, "both")
    | dict.fromkeys(("producer", "sequence"), "batch"),
    "write to SQL": dict.fromkeys(sql_sink.WRITE_OPTIONS, "both")
    | dict.fromkeys(("producer", "sequence"), "batch"),
    "queues": read_and_written(queues.READ_OPTIONS, queues.WRITE_OPTIONS)
    | dict.fromkeys(("producer", "sequence"), "batch write"),
    "dirty lists": read_and_written(icks.READ_OPTIONS, icks.WRITE_OPTIONS),
    "timelines": read_and_written(timelines.READ_OPTIONS, timelines.WRITE_OPTIONS),
    "tables": dict.fromkeys(tables.OPTIONS),
}


def tables_of(page: str) -> list[dict[str, str | None]]:
    """Return the tables of options of a page: each option, and where it may stand."""
    found = []
    for heading, rows in re.findall(
        r"^(\| option \|[^\n]*)\n\|[-|]+\n((?:\|[^\n]*\n)+)", page, re.MULTILINE
    ):
        cells = [row.split("|")[1:3] for row in rows.splitlines()]
        within = "| in |" in heading
        found.append(
            {
                name: where.strip() if within else None
                for names, where in cells
                for name in re.findall(r"`(\w+)`", names)
            }
        )
    return found


def test_every_table_of_options_is_compared() -> None:
    assert len(tables_of(SPARK_PAGE.read_text())) == len(TABLES)


@pytest.mark.parametrize("name", TABLES)
def test_every_option_of_a_format_is_in_the_reference_and_no_other(name: str) -> None:
    told = tables_of(SPARK_PAGE.read_text())[list(TABLES).index(name)]
    assert told == TABLES[name]


# ── The reference of the RESP door says of every command, error and limit what is true ───────────


RESP_PAGE = (ROOT / "docs" / "reference" / "resp.md").read_text("utf-8")


def test_the_reference_has_every_command() -> None:
    assert all(resp_row(command) in RESP_PAGE for command in COMMANDS.values()), "run make derived"


def test_the_reference_has_every_code_of_an_error() -> None:
    stated = re.findall(r"^\| `([A-Z-]+)` \|", RESP_PAGE.split("## Errors")[1], flags=re.MULTILINE)
    assert tuple(stated) == replies.ERROR_CODES
    described = re.findall(r"^ *([A-Z-]+)  +", replies.__doc__ or "", flags=re.MULTILINE)
    assert tuple(described) == replies.ERROR_CODES


def test_the_reference_has_every_limit() -> None:
    stated = dict(re.findall(r"^\| `([a-z_]+)` \| ([\d,]+)", RESP_PAGE, flags=re.MULTILINE))
    limits = RespLimits()
    assert stated == {one.name: f"{getattr(limits, one.name):,}" for one in fields(limits)}


# ── The pages and the OpenAPI document of the HTTP API say what its table of routes says ─────────


def test_the_reference_page_is_made_of_the_table() -> None:
    told = PAGE.read_text().partition(f"{MARK}\n\n")[2]
    assert told == generated(), "run python -m tests.support.http_reference"


def test_every_route_has_a_name_and_words_of_its_own() -> None:
    names = [route.operation for route in ROUTES]
    assert len(set(names)) == len(names)
    assert all(route.summary.endswith(".") for route in ROUTES)
    places = [(route.method, route.path) for route in ROUTES]
    assert len(set(places)) == len(places)


def test_every_change_by_an_administrator_shows_its_object_in_the_audit() -> None:
    hidden = {r.operation for r in ROUTES if r.scope is Scope.ADMIN and r.look is None}
    assert not hidden


def test_the_document_describes_every_route() -> None:
    told = msgspec.json.decode(document(ROUTES))
    assert told["openapi"] == "3.1.0"
    found = {(m.upper(), path) for path, item in told["paths"].items() for m in item}
    assert found == {(route.method, route.path) for route in ROUTES}
    names = set(told["components"]["schemas"])
    text = document(ROUTES).decode()
    missing = {
        part.partition('"')[0]
        for part in text.split("#/components/schemas/")[1:]
        if part.partition('"')[0] not in names
    }
    assert not missing


def test_every_route_is_found_by_its_path() -> None:
    router = Router(ROUTES)
    for route in ROUTES:
        names = tuple(f"n%2F{place}" for place, _ in enumerate(route.parameters))
        path = route.path
        for parameter, name in zip(route.parameters, names, strict=True):
            path = path.replace(f"{{{parameter}}}", name)
        assert router.find(route.method, path) == (
            route,
            tuple(name.replace("%2F", "/") for name in names),
        )
        with pytest.raises(Refused):
            router.find(route.method, f"{path}/more/more/more")


def test_every_error_has_a_status() -> None:
    kinds = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]
    for kind in kinds:
        if issubclass(kind, errors.HeadwaterError):
            error = kind.__new__(kind)
            assert 400 <= status_of(error) <= 599, kind


# ── Everything that names a metric names one that exists, with the labels it has ─────────────────


MONITORING = ROOT / "docs" / "assets" / "monitoring"
DASHBOARD, ALERTS = MONITORING / "grafana-dashboard.json", MONITORING / "alerts.yml"


def named_in(text: str) -> set[str]:
    """Return the metrics that a text names, without what belongs to a histogram."""
    found = set(re.findall(rf"\b{PREFIX}([a-z_]+)", text))
    return {re.sub(r"(?<=_seconds)_(bucket|sum|count)$", "", name) for name in found}


@pytest.mark.parametrize("file", [DASHBOARD, ALERTS], ids=lambda file: file.name)
def test_a_file_for_monitoring_names_only_metrics_that_exist(file: Path) -> None:
    text = file.read_text("utf-8")
    assert named_in(text)
    assert named_in(text) <= set(FAMILIES)


def test_every_query_of_the_dashboard_uses_labels_that_its_metric_has() -> None:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            known = {"le"}.union(*(FAMILIES[name].labels for name in named_in(target["expr"])))
            used = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            used |= set(re.findall(r"(\w+)=~?\"", target["expr"]))
            for names in re.findall(r"by \(([^)]*)\)", target["expr"]):
                used |= set(names.split(", "))
            assert used <= known, panel["title"]


def test_no_metric_has_a_label_that_prometheus_gives_to_what_it_scrapes() -> None:
    for family in FAMILIES.values():
        assert not {"instance", "job"}.intersection(family.labels), family.name


def test_every_alert_shows_labels_that_its_metric_has() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        known = {"instance"}.union(*(FAMILIES[name].labels for name in named_in(rule["expr"])))
        for text in rule["annotations"].values():
            assert set(re.findall(r"\$labels\.(\w+)", text)) <= known, rule["alert"]


def test_what_every_server_of_a_store_says_is_not_added_up() -> None:
    for panel in json.loads(DASHBOARD.read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            assert not ("$store" in target["expr"] and "sum" in target["expr"]), panel["title"]


def test_every_alert_has_an_expression_a_severity_and_a_cure() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text("utf-8"))["groups"]
    for rule in group["rules"]:
        assert rule["expr"]
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["description"]


def test_the_reference_lists_every_metric_as_it_is() -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text("utf-8")
    rows = [
        f"| `{family.full_name}` | {family.kind} "
        f"| {', '.join(f'`{label}`' for label in family.labels) or '–'} | {family.help} |"
        for family in FAMILIES.values()
    ]
    assert [row for row in rows if row not in text] == []
    assert named_in(text) <= set(FAMILIES)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_a_counter_is_a_total_and_a_help_is_a_sentence(family: tuple[str, ...]) -> None:
    name, kind, _, said = family
    assert name.endswith("_total") == (kind == "counter")
    assert said.endswith(".")
