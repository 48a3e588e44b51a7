"""Profiles of headwater.toml: where the file is found, what counts, what is refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import headwater
import headwater.aio
from headwater.errors import InvalidInput
from headwater.kernel import profiles
from headwater.kernel.profiles import CONFIG_VARIABLE, FILE_NAME, PROFILE_VARIABLE, VARIABLES, load
from tests.support.commands import run

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
