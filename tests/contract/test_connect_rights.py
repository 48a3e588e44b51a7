"""Who may connect: passwords, users, rights; what is missing is named, no secret is shown."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import pytest
import redis

import headwater
from headwater.errors import (
    AccessDenied,
)
from tests.support.servers import Server, until
from tests.support.stores import works

Dial = Callable[[str | None], headwater.Headwater]


@pytest.mark.parametrize(
    ("credentials", "says"),
    [
        ("", "asks for a password"),
        (":wrong-pw@", "wrong user name or password"),
        ("app:wrong-pw@", "wrong user name or password"),
        ("nobody:wrong-pw@", "wrong user name or password"),
        ("app@", "wrong user name or password"),
    ],
)
def test_wrong_and_missing_passwords(
    credentials: str, says: str, locked_server: Server, dial: Dial
) -> None:
    for url in (
        f"redis://{credentials}127.0.0.1:{locked_server.port}",
        f"unix://{credentials}{locked_server.socket}",
    ):
        with pytest.raises(AccessDenied, match=says) as caught:
            dial(url)
        assert "URL" in str(caught.value), "the cure"
        assert "-pw" not in str(caught.value)


def test_a_password_for_a_server_that_has_none(server: Server, dial: Dial) -> None:
    with pytest.raises(AccessDenied, match="has no password; take it out of the URL"):
        dial(f"redis://:some-pw@127.0.0.1:{server.port}")


@pytest.mark.parametrize(
    ("rights", "named"),
    [
        ("+@all -info", "'info'"),
        ("+@all -fcall", "'fcall'"),
        ("+@all -function|load", "'function|load'"),
        ("+@all -client|setname", "'client|setname'"),
    ],
)
def test_a_right_that_is_missing_is_named(rights: str, named: str, dial: Dial) -> None:
    with Server(tcp=True) as server, server.client() as admin:
        rules = ["on", ">poor-pw", "~hw:*", *rights.split()]
        admin.execute_command("ACL", "SETUSER", "poor", *rules)
        with pytest.raises(AccessDenied) as caught:
            dial(f"redis://poor:poor-pw@127.0.0.1:{server.port}")
        assert named in str(caught.value)
        assert "headwater doctor" in str(caught.value)
        assert "poor-pw" not in str(caught.value)


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        (["~hw:*", "+@all", "-hset"], "may not run hset on keys of the pattern hw:*"),
        (["~hw:*", "+@all", "-xadd", "-memory|usage"], "may not run memory|usage, xadd on"),
        (["~other:*", "+@all"], "zadd"),
    ],
)
def test_a_right_that_only_functions_need_is_missed_before_anything_is_changed(
    rules: list[str], named: str, server: Server, dial: Dial
) -> None:
    user = f"u{secrets.token_hex(4)}"
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">poor-pw", *rules)
    with pytest.raises(AccessDenied) as caught:
        dial(f"redis://{user}:poor-pw@127.0.0.1:{server.port}")
    assert named in str(caught.value)
    assert "ACL SETUSER ... ~hw:* " in str(caught.value)
    assert "poor-pw" not in str(caught.value)


def test_a_right_that_is_taken_away_in_the_middle_of_work_is_an_error_of_rights(
    server: Server, dial: Dial
) -> None:
    user = f"u{secrets.token_hex(4)}"
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">poor-pw", "~hw:*", "+@all")
        hw = dial(f"redis://{user}:poor-pw@127.0.0.1:{server.port}")
        admin.execute_command("ACL", "SETUSER", user, "-xadd")
        with pytest.raises(AccessDenied, match=r"'xadd'.*grant the user that command"):
            hw.stream(user).write("t", b"v")
        with pytest.raises(AccessDenied, match=r"access a key.*~NAME/ick/"):
            hw.ick(user).add({"member": 1})


def until_gone(admin: redis.Redis, user: str) -> None:
    """Return when the server has closed the connections of a user."""
    until(lambda: user not in [client["user"] for client in admin.client_list()])


def test_a_right_taken_away_in_the_middle_of_work(server: Server, dial: Dial) -> None:
    user = f"u{secrets.token_hex(4)}"
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", user, "on", ">poor-pw", "~hw:*", "+@all")
        hw = dial(f"redis://{user}:poor-pw@127.0.0.1:{server.port}")
        assert works(hw)
        admin.execute_command("ACL", "DELUSER", user)
        until_gone(admin, user)
        with pytest.raises(AccessDenied, match="wrong user name or password"):
            hw.stream(user).write("t", b"v")


def test_a_password_appears_nowhere(
    locked_server: Server, dial: Dial, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    hw = dial(f"redis://app:app-pw@127.0.0.1:{locked_server.port}")
    stream = hw.stream("secrets")
    stream.write("t", b"v")
    shown = [repr(hw), repr(hw.store), repr(stream), hw.store.where, caplog.text]
    shown.append(repr(vars(hw.store.connections)))
    with locked_server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "app", "resetpass", ">other-pw")
        admin.execute_command("CLIENT", "KILL", "USER", "app")
        until_gone(admin, "app")
        with pytest.raises(AccessDenied) as caught:
            stream.write("t", b"v")
        admin.execute_command("ACL", "SETUSER", "app", "resetpass", ">app-pw")
    error: BaseException | None = caught.value
    while error is not None:
        shown += [str(error), repr(error)]
        error = error.__cause__ or error.__context__
    assert not [text for text in shown if "app-pw" in text]
