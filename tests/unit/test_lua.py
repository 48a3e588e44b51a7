"""Every server function states its contract, keeps it, and is there because something calls it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import headwater
from headwater.store import library as library_module
from headwater.store.library import FORMAT, VERSION, library, name_in_server, needs_loading
from tests.support import contracts
from tests.support.contracts import COMMENT, FILES, PACKAGE, Function, entries, functions, shown

ARGUMENT = re.compile(r"\bargs\[(\d+)\]")

each = pytest.mark.parametrize("function", functions().values(), ids=lambda f: f.name)


def code_of(function: Function) -> str:
    return function.code.partition("--[[")[0]


def listed_arguments(function: Function) -> list[int]:
    """Return the numbers of the arguments in a header; the last may stand for all from it on."""
    text = re.search(r"^ARGV\s+(.*?)^Reply\b", function.header, re.DOTALL | re.MULTILINE)
    return [int(n) for n in re.findall(r"(?:^|\s{2,})(\d+)(?:\.\.)? ", text[1] if text else "")]


@each
def test_a_function_says_its_purpose_keys_arguments_and_reply(function: Function) -> None:
    purpose = function.header.partition(":")[2].split("KEYS")[0]
    assert len(purpose.split()) >= 3
    assert function.section("KEYS")
    assert function.section("Reply")


@each
def test_a_header_lists_arguments_in_order(function: Function) -> None:
    listed = listed_arguments(function)
    assert listed == list(range(1, len(listed) + 1))


@each
def test_a_function_names_its_arguments_first_and_in_order(function: Function) -> None:
    """An argument is read by its number once, in the statements at the top; then it has a name."""
    used = [int(number) for number in ARGUMENT.findall(code_of(function))]
    assert used == listed_arguments(function)[: len(used)], f"it reads {used}"
    lines = [line for line in code_of(function).splitlines() if ARGUMENT.search(line)]
    assert all(line.lstrip().startswith("local ") for line in lines), lines


def test_what_functions_share_reads_no_argument_by_its_number() -> None:
    for file in FILES:
        own = "".join(
            code_of(function) for function in functions().values() if function.file == file
        )
        found = ARGUMENT.findall(COMMENT.sub("", file.read_text("utf-8")))
        assert len(found) == len(ARGUMENT.findall(own)), file


@pytest.mark.parametrize("name", entries())
def test_the_reference_shows_the_contract_of_a_function(name: str) -> None:
    assert shown().get(name) == entries()[name], "run `make contracts`"


def test_the_reference_shows_no_function_that_is_not_there() -> None:
    assert shown().keys() == entries().keys(), "run `make contracts`"


def test_a_contract_that_is_released_does_not_change() -> None:
    known = contracts.recorded()
    packages = ", ".join(contracts.changed())
    assert not packages, contracts.RAISE.format(packages=packages, version=known.version)
    assert known.development == headwater.__version__, "run `make contracts` before you change any"


def test_a_new_format_comes_with_a_new_version() -> None:
    """Else clients that do not know the format would call functions that reply in it."""
    known = contracts.recorded()
    assert known.format <= FORMAT
    assert known.version < VERSION or known.format == FORMAT, "raise VERSION, too"


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `make contracts` writes, as copies."""
    for name in ("RECORD", "PAGE", "EXAMPLES"):
        file = getattr(contracts, name)
        copy = tmp_path / file.name
        copy.write_text(file.read_text("utf-8"))
        monkeypatch.setattr(contracts, name, copy)


def change_the_log() -> None:
    """Record what would be released if the functions of the log had another contract."""
    text = contracts.RECORD.read_text("utf-8")
    contracts.RECORD.write_text(text.replace('"log": "', '"log": "old'))


@pytest.mark.usefixtures("copies")
def test_a_contract_is_recorded_when_its_release_is_out_and_then_it_does_not_change(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(headwater, "__version__", "999.0")
    assert contracts.main(wording=False) == 0
    known = contracts.recorded()
    assert known == ("999.0", VERSION, FORMAT, contracts.digests())
    change_the_log()
    assert contracts.changed() == ["log"]
    assert contracts.main(wording=False) == 1
    assert "functions of log take or reply" in capsys.readouterr().out
    assert contracts.changed() == ["log"]
    assert contracts.main(wording=True) == 0
    assert contracts.recorded() == known


@pytest.mark.usefixtures("copies")
def test_a_contract_may_change_until_its_release_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headwater, "__version__", "999.0")
    contracts.main(wording=False)
    change_the_log()
    known = contracts.recorded()
    monkeypatch.setattr(contracts, "VERSION", VERSION + 1)
    assert contracts.changed() == []
    assert contracts.main(wording=False) == 0
    assert contracts.recorded() == known


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.replace("2 member", "2 name of the member"),
        lambda header: header.replace("stream last,", "stream last, its first,"),
        lambda header: header.replace("HW_GRAVE <stream>", "HW_GRAVE"),
        lambda header: header.replace("1 the stream", "1 the stream   2 its tail"),
    ],
    ids=["ARGV", "Reply", "error", "KEYS"],
)
def test_the_digest_depends_on_all_that_a_client_depends_on(change: Callable[[str], str]) -> None:
    read = functions()["hw_group_read"]
    assert read._replace(header=change(read.header)).terms() != read.terms()
    reworded = read.header.replace("hand messages to one member", "give messages to one member")
    assert read._replace(header=reworded).terms() == read.terms()


def test_every_function_that_is_called_exists_and_every_one_that_exists_is_called() -> None:
    sources = [file.read_text("utf-8") for file in PACKAGE.rglob("*.py")]
    called = {name for text in sources for name in re.findall(r"[\"'](hw_\w+)[\"']", text)}
    assert called == set(functions())


def test_the_library_holds_every_file_once() -> None:
    source = library().source
    for file in FILES:
        text = file.read_text("utf-8")
        for name in contracts.REGISTERED.findall(text):
            text = text.replace(f"'{name}'", f"'{name_in_server(name)}'")
        assert source.count(text) == 1, file


def test_the_server_knows_every_function_by_the_version_of_its_contract() -> None:
    found = re.findall(r"register_function(?:\('|\{\s*function_name = ')(\w+)'", library().source)
    assert sorted(found) == sorted(f"hw{VERSION}_{name[3:]}" for name in functions())


def test_the_page_for_other_languages_calls_functions_of_this_version() -> None:
    named = set(re.findall(r"\bhw\d*_[a-z_]+[a-z]", contracts.EXAMPLES.read_text("utf-8")))
    known = {name_in_server(name) for name in functions()}
    assert named - known == {"hw_stream_write"}, "run `make contracts`"


@pytest.mark.parametrize(
    ("found", "replaced"),
    [("0.0.9", True), ("0.1.0rc1", True), ("0.1.0", True), ("0.1.1", False), ("0.10.0", False)],
)
def test_a_newer_release_keeps_its_functions(
    found: str, replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_module, "__version__", "0.1.0")
    library.cache_clear()
    try:
        assert needs_loading(f"{VERSION}:{found}:fedcba9876543210:1") is replaced
        assert not needs_loading(library().identity)
        assert needs_loading(None)
    finally:
        library.cache_clear()


def test_a_library_is_loaded_again_to_write_a_newer_format_never_an_older_one() -> None:
    first, second = library(1).identity, library(2).identity
    assert needs_loading(first, 2)
    assert not needs_loading(second, 1)
    assert not needs_loading(second, 2)
    assert "FORMAT, WRITES" in library(2).source


def test_every_shared_file_tells_its_idea_first() -> None:
    for file in FILES:
        assert file.read_text("utf-8").startswith("--[["), file


def test_no_call_is_given_the_negative_of_a_number() -> None:
    """Lua's negative of 0 is -0, which Redis 7.0 does not take for a number; write 0 - n."""
    for file in FILES:
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
            assert not re.search(r"redis\.call\(.*, -[a-z(]", line), f"{file}:{number}"
