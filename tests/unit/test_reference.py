"""The reference says of every public name, limit, error and function what is true of the code."""

from __future__ import annotations

import inspect
import re
import tomllib
from pathlib import Path
from typing import Any, get_args

import pytest
from markdown.extensions.toc import slugify

import headwater
from headwater import errors, outbox, serve, testing, timeline
from headwater.app.running import RunningApp
from headwater.ick import keys as ick_limits
from headwater.kernel import instrument
from headwater.log import keys
from headwater.queue import keys as queue_limits
from headwater.store import steps
from tests.support.pages import ROOT, pages

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
PARTS_OF_THE_OUTBOX = (
    outbox.Outbox,
    outbox.Streamer,
    outbox.Consumer,
    outbox.AsyncConsumer,
)

PARTS_OF_TESTS = (
    testing.Drained,
    testing.PrivateStore,
    testing.StoreClock,
    testing.StoreFaults,
)


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
    return [
        name
        for name, found in vars(kind).items()
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
    assert set(steps.rules(cluster).split()) <= listed


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
