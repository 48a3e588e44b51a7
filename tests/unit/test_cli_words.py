"""How the command line understands words, cuts input into batches, and spells data."""

from __future__ import annotations

import datetime as dt
import inspect
import io
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest
import typer
from typer.main import get_command
from typer.models import CommandInfo
from typer.testing import CliRunner

import headwater
from headwater.cli import line_input, options, output, program, spark, timeline
from headwater.cli.program import app, every_command, name_of, narrowed
from headwater.errors import InvalidInput
from headwater.timeline import Farm


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


def test_help_waits_for_no_large_library() -> None:
    program = (
        "import sys; from typer.testing import CliRunner; from headwater.cli.program import app\n"
        "assert CliRunner().invoke(app, ['stream', 'read', '--help']).exit_code == 0\n"
        "large = ('pyarrow', 'redis', 'sqlalchemy', 'pyspark', 'msgspec', 'asyncio')\n"
        "sys.exit(' '.join(name for name in large if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


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
