"""Views are what is shown: complete, as their schema says, and the only way to JSON."""

from __future__ import annotations

import ast
import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, UnsetType

import headwater
from headwater import views
from headwater.kernel.inputs import NO_LIMITS, Limits, from_text, to_text
from headwater.log import types as log_types
from headwater.log.retention import Kept
from headwater.queue import types as queue_types
from headwater.store.doctor import Finding
from headwater.store.embedded import EmbeddedStatus
from headwater.timeline.records import InstanceStatus, Repaired
from headwater.views.record import Mirror, View

ROOT = Path(headwater.__file__).parent
VIEWS = views.all_views()
SCHEMAS = views.schemas()

# Views that are written by hand, the types they show, and the fields that they leave out or spell
# otherwise. A mirror has all fields by itself.
BY_HAND: dict[str, tuple[type, set[str]]] = {
    "MessageView": (log_types.Message, set()),
    "DeadLetterView": (log_types.DeadLetter, {"time_ms"}),  # as buried_ms
    "DeliveryView": (queue_types.Delivery, set()),
    "FindingView": (Finding, set()),
    "EmbeddedView": (EmbeddedStatus, set()),
    "InstanceView": (InstanceStatus, set()),
    "WalkedView": (Repaired, set()),
    "MovedView": (Repaired, set()),
}


def fields_of(kind: Any) -> set[str]:
    if dataclasses.is_dataclass(kind):
        return {field.name for field in dataclasses.fields(kind)}
    return set(getattr(kind, "_fields", ()) or kind.__struct_fields__)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_view_has_every_field_of_what_it_shows(name: str) -> None:
    kind, left_out = BY_HAND[name]
    assert fields_of(kind) - left_out <= set(VIEWS[name].__struct_fields__)
    assert left_out <= fields_of(kind)


def test_a_mirror_has_every_field_by_itself_and_its_names_in_json() -> None:
    any_group = sample(log_types.GroupInfo, full=True)
    facts = dataclasses.replace(any_group, name="g", gaps=((1, 2),))
    assert fields_of(views.streams.GroupView) == fields_of(log_types.GroupInfo) | {"stream"}
    shown = json.loads(views.streams.GroupView.of(facts, stream="s").to_json())
    assert (shown["stream"], shown["group"], "name" in shown) == ("s", "g", False)
    assert shown["gaps"] == [[1, 2]]


def test_housekeeping_shows_every_count_of_its_report() -> None:
    counts = {field.name for field in dataclasses.fields(Kept) if field.type == "int"}
    assert set(views.stores.STREAM_CHANGES) == counts - {"held"}
    kept_queue = dataclasses.fields(queue_types.KeptQueue)
    queue = {field.name for field in kept_queue if field.type == "int"}
    assert set(views.stores.QUEUE_CHANGES) == queue


def sample(hint: Any, full: bool) -> Any:
    """Return something of a type: as much of it as can be, or as little."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return sample(arguments[0], full)
    if origin is Literal:
        return arguments[-1 if full else 0]
    if origin in (Union, UnionType):
        small = next((one for one in (NoneType, UnsetType) if one in arguments), arguments[0])
        return sample(next(one for one in arguments if one is not small) if full else small, full)
    if origin is tuple and Ellipsis not in arguments:
        return tuple(sample(one, full) for one in arguments)
    if origin is not None:
        items = [sample(one, full) for one in arguments if one is not Ellipsis] if full else []
        if issubclass(origin, Mapping):
            return dict([items]) if items else {}
        return (tuple if origin is tuple else list)(items)
    if hint is Limits:
        return Limits(2, 3, "4/5s", "6/m burst 7") if full else NO_LIMITS
    if fields := get_type_hints(hint) if hasattr(hint, "__annotations__") else None:
        found = {name: sample(one, full) for name, one in fields.items()}
        return hint(**{name: one for name, one in found.items() if one is not UNSET})
    plain = {str: "ä\n", int: 2**53, float: 0.1, bool: True, NoneType: None, UnsetType: UNSET}
    return plain.get(hint, {"any": [1]}) if full else plain.get(hint)


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("name", VIEWS)
def test_what_a_view_prints_is_what_its_schema_says(name: str, full: bool) -> None:
    view: View = sample(VIEWS[name], full)
    schema, printed = SCHEMAS[name], json.loads(view.to_json())
    assert set(schema["required"]) <= set(printed) <= set(schema["properties"])
    assert set(printed) == set(schema["properties"]) or not full
    assert VIEWS[name].from_json(view.to_json()) == view
    assert b"\n" not in view.to_json()


def test_every_schema_says_what_it_is_of() -> None:
    assert set(VIEWS) <= set(SCHEMAS)
    assert all(SCHEMAS[name]["description"] for name in VIEWS)
    assert Mirror.__name__ not in SCHEMAS


def test_names_of_times_end_with_their_unit() -> None:
    bare = {"time", "age", "duration", "delay", "interval", "timeout", "memory", "size"}
    for name, kind in VIEWS.items():
        assert not bare & set(kind.__struct_fields__), name


@given(st.binary(max_size=20) | st.text(st.characters(exclude_categories=["Cs"]), max_size=9))
def test_bytes_are_text_or_base64_and_come_back(data: bytes | str) -> None:
    text, encoding = to_text(data)
    raw = data.encode() if isinstance(data, str) else data
    found = from_text(text, encoding)
    assert (found.encode() if isinstance(found, str) else found) == raw
    assert (encoding is None) == (raw.decode("utf-8", "replace").encode() == raw)


def test_what_is_not_base64_is_refused() -> None:
    with pytest.raises(ValueError, match="is not base64"):
        from_text("not base64!", "base64")


def test_what_utf8_cannot_hold_is_escaped() -> None:
    status = EmbeddedStatus(Path("/tmp/\udcff"), False, False, False, "s\udcff", None, None)
    shown = json.loads(views.stores.EmbeddedView.of(status).to_json())
    assert (shown["directory"], shown["socket"]) == ("/tmp/\\udcff", "s\\udcff")


def imports(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def modules_that_import(name: str, folder: Path) -> set[str]:
    return {
        str(module.relative_to(ROOT))
        for module in folder.rglob("*.py")
        if name in {found.partition(".")[0] for found in imports(module)}
    }


def test_no_command_builds_json_by_hand() -> None:
    # What --json prints goes through output.show_json, which takes views alone: mypy sees to it.
    assert modules_that_import("json", ROOT / "cli") == {
        "cli/demo/member.py",  # the notes between the processes of the demo
        "cli/demo/story.py",  # and the values that it writes to the log
    }
    assert modules_that_import("msgspec", ROOT / "cli") == {
        "cli/verify/drive.py"  # the notes of its processes
    }
    written = [
        module
        for module in (ROOT / "cli").rglob("*.py")
        if "to_json" in module.read_text() and module.name != "output.py"
    ]
    assert written == []


def test_text_or_base64_exists_once() -> None:
    assert modules_that_import("base64", ROOT) == {
        "kernel/inputs.py",
        "timeline/records.py",  # Roshi's cursors: URL-safe, always
        "serve/timeline/wire.py",  # Roshi's wire: base64 always
        "serve/timeline/lenient.py",  # the same, as Go reads it
    }


def test_only_the_views_of_jobs_need_spark() -> None:
    program = (
        "import sys\n"
        "class NoSpark:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.partition('.')[0] == 'pyspark': raise ModuleNotFoundError(name)\n"
        "from importlib import util; util.find_spec = lambda name: None\n"
        "sys.meta_path.insert(0, NoSpark())\n"
        "from headwater import views\n"
        "assert 'ArchiveView' in views.schemas() and 'TotaledView' not in views.schemas()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_views_are_imported_when_they_are_used() -> None:
    program = (
        "import sys, headwater.views\n"
        "heavy = ('msgspec', 'pyarrow', 'redis', 'sqlalchemy', 'asyncio')\n"
        "sys.exit(' '.join(m for m in heavy if m in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    with pytest.raises(AttributeError, match="no_such_view"):
        _ = views.no_such_view  # type: ignore[attr-defined]
