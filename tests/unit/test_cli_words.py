"""How the command line understands words, cuts input into batches, and spells data."""

from __future__ import annotations

import datetime as dt
import inspect
import io
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import typer
from rich.console import Console, RenderableType
from typer.main import get_command
from typer.models import CommandInfo
from typer.testing import CliRunner

import headwater
import headwater.aio
from headwater.cli import line_input, options, output, program
from headwater.cli.groups import spark, timeline
from headwater.cli.main import app
from headwater.cli.program import as_typed, every_command, name_of, narrowed, not_utf8
from headwater.cli.top_screen import (
    TopPicture,
    overview_picture,
    place_kept,
    ruler_picture,
    spark_text,
    strip_text,
)
from headwater.errors import InvalidInput
from headwater.kernel import profiles
from headwater.kernel.profiles import CONFIG_VARIABLE, FILE_NAME, PROFILE_VARIABLE, VARIABLES, load
from headwater.log.inspecting import GroupRuler, PendingRange
from headwater.metrics.alarms import AlarmFacts, alarms_of
from headwater.metrics.history import Point
from headwater.metrics.sweeps import StoreSample
from headwater.serve.console.pages.lagging import gathered, lagging
from headwater.serve.console.ruler import Segment, draw, window_of
from headwater.store.doctor import DoctorReport, Finding
from headwater.timeline import Farm
from headwater.views.overview import StreamGroup
from tests.support.commands import run
from tests.support.samples import group, stream


def test_offsets_and_ranges_of_them() -> None:
    assert options.offsets(["5", "7-9", "1"]) == [5, (7, 9), 1]


@pytest.mark.parametrize(
    ("word", "ms"),
    [
        ("500", 500),
        ("500ms", 500),
        ("45s", 45_000),
        ("30m", 1_800_000),
        ("12h", 43_200_000),
        ("7d", 604_800_000),
        ("2w", 1_209_600_000),
    ],
)
def test_spans_of_time(word: str, ms: int) -> None:
    assert options.duration_ms(word, "--option") == ms


@pytest.mark.parametrize(
    ("word", "size"),
    [
        ("1000", 1000),
        ("5B", 5),
        ("500MB", 500_000_000),
        ("2GiB", 2**31),
        ("1k", 1000),
        ("3 TB", 3 * 10**12),
    ],
)
def test_sizes(word: str, size: int) -> None:
    assert options.size_bytes(word, "--option") == size


def test_options_in_milliseconds_take_spans_of_time() -> None:
    words = "--ack-ms 30s --ttl-ms=2m --ack-ms 5 --tag 7s -- --x-ms 1s"
    assert " ".join(program._in_ms(words.split())) == (
        "--ack-ms 30000 --ttl-ms=120000 --ack-ms 5 --tag 7s -- --x-ms 1s"
    )


def test_counts_agree_with_their_nouns() -> None:
    assert [output.counted(n, "message") for n in range(3)] == [
        "0 messages",
        "1 message",
        "2 messages",
    ]


def test_values_that_look_like_numbers_stay_on_the_left(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_table(["offset", "value"], [(9, b"1"), (10, b"100")])
    assert capsys.readouterr().out.splitlines()[2:] == ["     9   1", "    10   100"]


@pytest.mark.parametrize("word", ["", "-1d", "1y", "d", "1.5h"])
def test_what_is_no_span_of_time_is_refused(word: str) -> None:
    with pytest.raises(typer.BadParameter):
        options.duration_ms(word, "--option")


@pytest.mark.parametrize("word", ["", "-1", "1iB", "MB", "1.5MB", "1XB"])
def test_what_is_no_size_is_refused(word: str) -> None:
    with pytest.raises(typer.BadParameter):
        options.size_bytes(word, "--option")


def test_places_in_a_stream() -> None:
    assert options.position("first") == "first"
    assert options.position("last") == "last"
    assert options.position("17") == 17
    noon = dt.datetime(2030, 1, 31, 12, tzinfo=dt.UTC)
    assert options.position("2030-01-31T12:00:00Z") == noon
    assert options.position("2030-01-31T13:00:00+01:00") == noon
    here = options.position("2030-01-31 12:00")
    assert isinstance(here, dt.datetime)
    assert here.replace(tzinfo=None) == dt.datetime(2030, 1, 31, 12)  # noqa: DTZ001
    assert here.tzinfo is not None


def test_a_time_that_is_shown_is_understood_again() -> None:
    shown = output.time_text(1_794_771_326_043)
    assert shown is not None
    time = options.position(shown)
    assert isinstance(time, dt.datetime)
    assert round(time.timestamp() * 1000) == 1_794_771_326_043
    assert output.time_text(9 * 10**15) == "9000000000000000 ms"


def test_data_is_spelled_so_that_a_terminal_only_shows_it() -> None:
    assert output.readable("käse 漢") == "käse 漢"
    assert output.readable(b"\x1b[31m\xff\n\x00") == "\\x1b[31m\\xff\\n\\x00"
    assert output.readable("\u202e\x7f") == "\\u202e\\x7f"
    assert output.readable(None) == "-"


def test_sizes_are_told_in_the_unit_that_fits() -> None:
    assert [output.size_text(n) for n in (0, 999, 1000, 1_550_000, 2 * 10**15)] == [
        "0 B",
        "999 B",
        "1.0 kB",
        "1.6 MB",
        "2000.0 TB",
    ]


def test_input_is_cut_into_lines_whatever_its_pieces() -> None:
    class Dripping(io.BytesIO):
        def read1(self, size: int | None = -1) -> bytes:  # noqa: ARG002
            return self.read(3)

    text = b"one\n\ntwo three\nfour"
    found = [line for batch in line_input.batches(Dripping(text), 2) for line in batch]
    assert found == [b"one", b"", b"two three", b"four"]


def test_batches_are_no_larger_than_asked_for() -> None:
    source = io.BytesIO(b"x\n" * 25)
    assert [len(batch) for batch in line_input.batches(source, 10)] == [10, 10, 5]


def test_a_line_is_not_held_back_when_no_more_input_is_there() -> None:
    ask, tell = os.pipe()
    with os.fdopen(ask, "rb") as source:
        found = line_input.batches(source, 1000)
        os.write(tell, b"one\ntwo\nhalf of ")
        assert next(found) == [b"one", b"two"]
        os.write(tell, b"three\n")
        assert next(found) == [b"half of three"]
        os.close(tell)
        assert list(found) == []


def test_input_that_is_there_already_is_put_together() -> None:
    ask, tell = os.pipe()
    with os.fdopen(ask, "rb") as source:

        def feed() -> None:
            with os.fdopen(tell, "wb") as sink:
                sink.write(b"x\n" * 30_000)

        feeder = threading.Thread(target=feed)
        feeder.start()
        sizes = [len(batch) for batch in line_input.batches(source, 10_000)]
        feeder.join()
    assert sum(sizes) == 30_000
    assert max(sizes) == 10_000


def test_a_tag_that_is_not_text_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidInput, match="line 7"):
        line_input.Split("", "=").entry(b"\xff=value", 7)


def paths(group: typer.Typer, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for command in group.registered_commands:
        yield (*before, name_of(command))
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from paths(inner.typer_instance, (*before, str(inner.name)))


def test_a_command_is_built_alone_and_is_the_same() -> None:
    every = list(paths(app))
    assert len(every) > 100
    assert len(set(every)) == len(every)
    for path in every:
        assert list(paths(narrowed([*path, "--json"]))) == [path]
    assert list(paths(every_command())) == every, "the whole is as it was"


@pytest.mark.parametrize(
    "options", [("--store", "queue"), ("--store=queue", "--profile", "-h"), ("--config", "a b")]
)
def test_options_before_a_command_do_not_hide_it(options: tuple[str, ...]) -> None:
    assert list(paths(narrowed([*options, "stream", "list"]))) == [("stream", "list")]


def test_every_option_before_a_command_is_known() -> None:
    takes = {
        name
        for one in get_command(app).params
        if not getattr(one, "is_flag", True)
        for name in one.opts
    }
    assert takes == set(program._TAKING)


@pytest.mark.parametrize("words", [("--verison",), ("strem", "reed")])
def test_what_names_no_command_leaves_all(words: tuple[str, ...]) -> None:
    assert list(paths(narrowed(words))) == list(paths(app))


@pytest.mark.parametrize("words", [(), ("--help",), ("--store", "stream"), ("strem", "reed")])
def test_what_names_no_command_of_a_group_leaves_all_of_it(words: tuple[str, ...]) -> None:
    inner = narrowed(["stream", *words])
    assert list(paths(inner)) == [path for path in paths(app) if path[0] == "stream"]


@pytest.mark.parametrize("words", [(), ("--help",), ("-h",), ("--store", "stream", "--help")])
def test_the_help_of_the_program_is_the_same_without_the_commands_of_groups(
    words: tuple[str, ...],
) -> None:
    part = narrowed(words)
    assert {path[0] for path in paths(part)}.isdisjoint({"stream", "queue", "spark"})
    texts = [CliRunner().invoke(program, ["--help"]).output for program in (part, app)]
    assert texts[0] == texts[1]
    assert "Write, read and manage streams." in texts[0]


@pytest.mark.parametrize(
    ("line", "group"),
    [
        ("headwater ", None),
        ("headwater stream", None),
        ("headwater stream ", "stream"),
        ("headwater queue st", "queue"),
        ("headwater --store x queue st", "queue"),
        ("headwater strem re", None),
    ],
)
def test_words_are_completed_among_all_commands_that_can_be_meant(
    line: str, group: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = [path for path in paths(app) if group in (None, path[0])]
    monkeypatch.setenv("_HEADWATER_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    assert list(paths(narrowed(()))) == wanted
    monkeypatch.delenv("COMP_CWORD")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", f"{line}r")
    assert set(wanted) <= set(paths(narrowed(())))
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line.strip())
    assert set(wanted) <= set(paths(narrowed(())))


def test_a_client_waits_for_no_function_of_arrow() -> None:
    program = "import sys, headwater.client; sys.exit('pyarrow.compute' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


FARM_WORDS = {
    "quorum": "write_quorum",
    "max_size": "max_size",
    "keep": "keep",
    "hash": "hash",
    "timeout_ms": "timeout_ms",
}


@pytest.mark.parametrize(
    "command", [*timeline.app.registered_commands, *spark.app.registered_commands]
)
def test_what_is_not_said_of_a_farm_is_what_the_farm_takes(command: CommandInfo) -> None:
    assert command.callback is not None
    said = inspect.signature(command.callback).parameters
    taken = inspect.signature(Farm.open).parameters
    for name, word in FARM_WORDS.items():
        if "instances" in said and name in said:
            assert said[name].default == taken[word].default


def test_every_public_name_is_there() -> None:
    assert sorted(headwater.__all__) == headwater.__all__
    assert set(headwater.__all__) <= set(dir(headwater))
    for name in headwater.__all__:
        assert getattr(headwater, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = headwater.no_such_name  # type: ignore[attr-defined]


# ── What the library refuses, in the words of the command that was typed ─────────────────────────


@dataclass
class Parameter:
    """What is known of an option or an argument of a command."""

    name: str
    opts: list[str]
    param_type_name: str = "option"
    metavar: str | None = None


PARAMETERS = [
    Parameter("ack_ms", ["--ack-ms", "--retry-ms"]),
    Parameter("expire_ms", ["--expire-ms"]),
    Parameter("lease", ["--lease"]),
    Parameter("quorum", ["--quorum"]),
    Parameter("rate", ["--rate"]),
    Parameter("count", ["--count", "-c"]),
    Parameter("as_json", ["--json"]),
    Parameter("tag", [], "argument", "[TAG]"),
    Parameter("members", [], "argument", "[MEMBER]..."),
]


@pytest.mark.parametrize(
    ("said", "typed"),
    [
        ("ack_ms must be from 1 to 9, not 0", "--ack-ms must be from 1 to 9, not 0"),
        ("expire_ms needs ack_ms: or else", "--expire-ms needs --ack-ms: or else"),
        ("lease_ms must be from 1", "--lease must be from 1"),
        ("write_quorum must be from 1 to 1, not 5", "--quorum must be from 1 to 1, not 5"),
        ("the count of rate must be from 1", "the count of --rate must be from 1"),
        ("count must be from 0 to 9, not 10", "--count must be from 0 to 9, not 10"),
        ("tag must be a str", "TAG must be a str"),
        # English, and what the user wrote.
        ("the count is 5; a rate is missing", "the count is 5; a rate is missing"),
        (
            "there is no stream 'ack_ms'; check the name",
            "there is no stream 'ack_ms'; check the name",
        ),
        ("no module 'as_json' in /x/ack_ms/y", "no module 'as_json' in /x/ack_ms/y"),
    ],
)
def test_arguments_of_the_library_become_options(said: str, typed: str) -> None:
    assert as_typed(said, PARAMETERS) == typed


def test_what_is_not_utf8_is_named() -> None:
    given = {"ack_ms": 5, "members": ["a", "b\udcff"]}
    said = "'utf-8' codec can't encode character: surrogates not allowed"
    assert not_utf8(said, PARAMETERS, given) == r"MEMBER 'b\udcff' is not UTF-8; encode it so"
    secret = {"tag": "redis://:secret\udcff@host"}
    assert not_utf8(said, PARAMETERS, secret) == "TAG is not UTF-8; encode it so"
    assert not_utf8(said, PARAMETERS, {"tag": "t"}) is None
    assert not_utf8("count must be an int", PARAMETERS, given) is None


# ── Tables of commands in a terminal of any width: no number is cut ──────────────────────────────


HEADINGS = ["group", "next", "ack_offset", "pending", "lag", "members", "state"]
ROW = ["send_confirmation_mail", 123_457, 1, 123_456, 176_544, 12, "waits for the first message"]


@pytest.fixture
def table_of_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> str:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    output.show_table(HEADINGS, [ROW, ["totals", *ROW[1:]]])
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


@pytest.mark.parametrize("width", [200, 120, 80, 60, 50, 30])
def test_every_number_is_whole(table_of_width: str, width: int) -> None:
    assert all(len(line.rstrip()) <= width for line in table_of_width.splitlines())
    for cell in ROW[1:-1]:
        assert re.search(rf"(?<!\S){cell}(?!\S)", table_of_width)


@pytest.mark.parametrize("width", [120])
def test_a_table_with_room_for_it_has_a_line_for_each_row(table_of_width: str) -> None:
    heading, _, *rows = table_of_width.splitlines()
    assert heading.split() == HEADINGS
    assert [row.split()[:2] for row in rows] == [
        ["send_confirmation_mail", "123457"],
        ["totals", "123457"],
    ]


@pytest.mark.parametrize("width", [60])
def test_without_room_each_cell_has_a_line_with_its_heading(table_of_width: str) -> None:
    first, second = (
        [line.split(maxsplit=1) for line in part.splitlines()]
        for part in table_of_width.split("\n\n")
    )
    assert [(name, cell.rstrip()) for name, cell in first] == [
        (heading, str(cell)) for heading, cell in zip(HEADINGS, ROW, strict=True)
    ]
    assert [word.rstrip() for word in second[0]] == ["group", "totals"]


# ── Profiles of headwater.toml: where the file is found, what counts, what is refused ────────────


TEXT = """
default = "dev"

[profiles.dev]
store = "embedded:data"
db = "sqlite:///app.db"

[profiles.production]
store = "env:OUR_REDIS"
timeline_token = "hush-hush"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the file, and the working directory below it."""
    for variable in (*VARIABLES.values(), CONFIG_VARIABLE, PROFILE_VARIABLE, "OUR_REDIS"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / FILE_NAME).write_text(TEXT)
    below = tmp_path / "src" / "app"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    return tmp_path


def test_the_nearest_file_above_says_what_no_variable_says(project: Path) -> None:
    found = load(None)
    assert found is not None
    assert found[:2] == ("dev", project / FILE_NAME)
    # Relative paths begin where the file is, whatever the working directory is.
    assert found.values == {
        "HEADWATER_URL": f"embedded:{project}/data",
        "HEADWATER_DB": f"sqlite:///{project}/app.db",
    }
    with profiles.applied(found):
        assert os.environ["HEADWATER_URL"] == f"embedded:{project}/data"
    assert "HEADWATER_URL" not in os.environ


def test_a_variable_that_is_set_counts_instead(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADWATER_URL", "redis://h")
    found = load("production", str(project / FILE_NAME))
    assert found is not None
    assert found.instead == ("HEADWATER_URL",)
    assert found.values == {"HEADWATER_TIMELINE_TOKEN": "hush-hush"}
    assert profiles.store_of(None, "production") == "redis://h"


def test_a_secret_may_stay_in_a_variable_of_any_name(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InvalidInput, match=r"\$OUR_REDIS, which is not set"):
        load("production")
    monkeypatch.setenv("OUR_REDIS", "redis://:hush@h")
    found = load("production")
    assert found is not None
    assert found.values["HEADWATER_URL"] == "redis://:hush@h"
    assert "hush" not in repr(found)
    assert str(project) in repr(found)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[profiles.dev]\nstor = 'x'", "unknown key 'stor'; did you mean 'store'"),
        ("[profile.dev]\nstore = 'x'", "unknown key 'profile'; did you mean 'profiles'"),
        ("[profiles.dev]\nstore = 5", "must be a text in quotes"),
        ("[profiles.dev]\nstore = 'x'\n[profiles.other]\nstore = 5", "'other' .* in quotes"),
        ("[profiles]\ndev = 'embedded:'", "must be a table"),
        ("default = 5", "default ="),
        ("[profiles.div]", "has no profile 'dev'; did you mean 'div'"),
        ("", "has no profile 'dev'; known are none"),
        ("[profiles.dev", "is not TOML"),
        ("[profiles.dev]\ndb = 'x'", "names no store"),
    ],
)
def test_what_cannot_be_meant_is_refused(project: Path, text: str, said: str) -> None:
    (project / FILE_NAME).write_text(text)
    for connect in (headwater.connect, headwater.aio.connect):
        with pytest.raises(InvalidInput, match=said):
            connect(profile="dev")


@pytest.mark.usefixtures("project")
def test_the_library_uses_a_profile_only_where_it_is_asked_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(PROFILE_VARIABLE, "unknown")
    assert profiles.store_of(None, None) is None
    assert profiles.store_of("redis://h", None) == "redis://h"
    with pytest.raises(InvalidInput, match="not both"):
        headwater.connect("redis://h", profile="dev")


@pytest.mark.parametrize(
    ("store", "warned"),
    [
        ("embedded:data", True),
        ("redis://h", True),
        ("env:OUR_REDIS", False),  # commands refuse it: it is not set
        ("embedded:src/app/.headwater", False),  # the one that the program opens
        ("embedded:", False),
    ],
)
def test_a_program_that_opens_another_store_than_commands_do_logs_it(
    project: Path, caplog: pytest.LogCaptureFixture, store: str, warned: bool
) -> None:
    (project / FILE_NAME).write_text(f'default = "dev"\n[profiles.dev]\nstore = "{store}"\n')
    assert profiles.store_of(None, None) is None
    assert ("connect(profile='dev')" in caplog.text) is warned
    caplog.clear()
    profiles.store_of("redis://named", None)
    assert not caplog.text


def test_the_file_is_named_as_its_reader_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match=r"name the file by \$HEADWATER_CONFIG"):
        headwater.connect(profile="x")
    assert "name the file by --config" in run(None, "--profile", "x", "stream", "list").err


def test_a_file_of_another_user_is_not_trusted_unless_it_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project / FILE_NAME
    monkeypatch.setattr(os, "geteuid", lambda: file.stat().st_uid + 1)
    if file.stat().st_uid == 0:
        os.chown(file, 12345, -1)
    with pytest.raises(InvalidInput, match="belongs to another user"):
        load(None)
    assert load(None, str(file)) is not None


def test_commands_take_the_profile_and_options_count_before_it(project: Path) -> None:
    for words, directory in (
        ((), project / "data"),
        (("--store", f"embedded:{project}/other"), project / "other"),
        (("--profile", "production"), None),
    ):
        answer = run(None, *words, "store", "status")
        if directory is None:
            assert (answer.code, "$OUR_REDIS" in answer.err) == (1, True)
        else:
            assert str(directory) in answer.out
    assert "HEADWATER_URL" not in os.environ


# ── The pictures of ``headwater top`` show what the console shows, in characters ─────────────────


def text_of(picture: RenderableType, width: int = 100) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    console.print(picture)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def a_picture(rows: int = 1, chosen: int | None = None) -> TopPicture:
    groups = [StreamGroup("s", group(1, 2, 5, 9000 - n, 8000)) for n in range(rows)]
    sample = StoreSample(100_000, [stream(7)], groups)
    alarms = alarms_of(AlarmFacts(sample))
    return TopPicture("here", sample, Point(12, 3, 5, 1, 2, 2), alarms, lagging(sample), {}, chosen)


def test_the_overview_names_what_is_wrong_and_what_lags() -> None:
    shown = text_of(overview_picture(a_picture()))
    assert "in 12/s · out 3/s" in shown
    assert "g of s is behind by 5 messages" in shown
    assert "91 s" in shown


def test_the_overview_says_what_a_crash_does_to_messages() -> None:
    ok = Finding("persistence", "appendonly yes, appendfsync always", "ok")
    weak = Finding("persistence", "fsync off; a crash loses messages", "fail", "set appendfsync")
    for finding, said in (
        (ok, "survives kill -9 and power loss"),
        (weak, "a crash loses messages"),
    ):
        report = DoctorReport("here", (finding,), "")
        shown = text_of(overview_picture(a_picture()._replace(report=report)))
        assert f"durability {said}" in shown


def test_alarms_of_one_kind_are_one_line_when_they_are_many() -> None:
    groups = [StreamGroup(f"s{n}", group(1, 2, 5, 9000, 8000)) for n in range(30)]
    groups[0] = groups[0]._replace(group=replace(groups[0].group, missed=7))
    sample = StoreSample(100_000, [], groups)
    found = gathered(alarms_of(AlarmFacts(sample)))
    assert [one.text for one in found] == [
        "Group g of s0 missed 7 messages: evicted before it read them",
        "30 groups have no member, and 150 messages wait for them",
    ]
    assert len(found[1].members) == 30
    few = gathered(alarms_of(AlarmFacts(replace(sample, groups=groups[:3]))))
    assert len(few) == 4, "three of a kind are told apart"
    shown = text_of(overview_picture(a_picture()._replace(alarms=found)))
    assert "30 groups have no member" in shown


@pytest.mark.parametrize(("width", "height"), [(200, 50), (120, 40), (80, 24), (60, 15), (50, 15)])
def test_a_narrow_overview_leaves_out_columns_and_cuts_no_number(width: int, height: int) -> None:
    groups = [StreamGroup("orders.of.europe", group(1, 1_234_567, 98_765_432, 9000, 8000))] * 9
    sample = StoreSample(100_000, [stream(7)], groups)
    alarms = alarms_of(AlarmFacts(sample))
    where = "embedded:///home/somebody/projects/shop/backend/.headwater"
    rows = [row._replace(name="send_confirmation_mail", dead=4321) for row in lagging(sample)]
    top = TopPicture(where, sample, Point(12, 3, 98_765_432, 1_234_567), alarms, rows, {}, 0)
    lines = text_of(overview_picture(top, width, height), width).splitlines()
    assert len(lines) <= height
    assert "/.headwater   sampled 0.0 s ago" in lines[0]
    heading = next(line for line in lines if line.startswith("name ")).split()
    chosen = next(line for line in lines if line.startswith("send_con")).split()
    columns = ["name", "stream", "kind", "lag", "behind", "pending", "oldest", "dead"]
    assert heading == {
        60: ["name", "stream", "lag", "behind", "pending", "dead"],
        50: ["name", "lag", "pending", "dead"],
    }.get(width, columns if width == 80 else [*columns, "last", "2", "min"])
    assert {"98,765,432", "1,234,567", "4,321"} <= set(chosen)
    # Whatever is cut ends between two words: each number is as it was.
    whole = set(text_of(overview_picture(top, 999), 999).split())
    told = [line for line in lines if not line.startswith(("and ", "j k"))]
    shown = {word.rstrip("…") for line in told for word in line.split()}
    assert {word for word in shown if word[0].isdigit()} <= whole


@pytest.mark.parametrize("chosen", [0, 50, 99])
def test_the_chosen_row_is_on_the_screen(chosen: int) -> None:
    top = a_picture(100, chosen)._replace(alarms=())
    shown = text_of(overview_picture(top, height=20))
    assert len(shown.splitlines()) <= 20
    told = re.search(r"rows (\d+) to (\d+) of 100\n", shown)
    assert told
    assert int(told[1]) <= chosen + 1 <= int(told[2])


def test_the_chosen_object_stays_chosen_when_rows_change_their_order() -> None:
    rows = [
        one._replace(series=("group", "s", f"g{n}")) for n in range(3) for one in a_picture().rows
    ]
    assert place_kept(rows, 0, rows[::-1]) == 2
    assert place_kept(rows, 1, [rows[2], rows[0]]) == 1, "the same place where it is gone"
    assert place_kept([], 0, rows) == 0


def test_names_do_nothing_to_a_terminal() -> None:
    top = a_picture()
    evil = top.rows[0]._replace(name="[bold]\x1b[31mred")
    assert r"[bold]\x1b[31mred" in text_of(overview_picture(top._replace(rows=[evil])))


@pytest.mark.parametrize(
    ("values", "shown"),
    [([0, 1, 2, 4], "▁▃▅█"), ([None, 4], " █"), ([0, 0], ""), ([], ""), ([1] * 40, "█" * 20)],
)
def test_a_spark_line_is_as_high_as_its_values(values: list[float | None], shown: str) -> None:
    assert spark_text(values) == shown


def test_what_is_rare_is_seen_in_a_strip() -> None:
    strip = [
        Segment("done", 0, 600, 1, 600),
        Segment("new", 600, 400, 601, 1000),
        Segment("dead", 300, 2, 301, 301),
    ]
    assert strip_text(strip, 10).plain == "✓✓✓✗✓✓····"


def test_a_ruler_has_a_row_for_everybody_who_reads() -> None:
    info = stream(100)
    facts = group(61, 20, 40, 1, 1)
    ruler = GroupRuler("g", 61, 21, [PendingRange(21, 40, 2, 10**15, 1)], [], [], start=1)
    picture = draw(info, window_of(info, None, None), [(facts, ruler)], [], 1000)
    shown = text_of(ruler_picture(info, 1204.4, picture, 122), 122)
    assert shown.splitlines()[1].endswith("B each · 1,204/s")
    row = next(line for line in shown.splitlines() if line.startswith("g "))
    assert row.split()[1] == "✓" * 12 + "②" * 12 + "✓" * 12 + "·" * 24
    assert "lag 40 (1.0 s) · pending 20" in row
    narrow = text_of(ruler_picture(info, None, picture, 50), 50).splitlines()
    place = narrow.index("g  lag 40 (1.0 s) · pending 20")
    assert narrow[place + 1] == "✓" * 10 + "②" * 10 + "✓" * 10 + "·" * 20
