"""From a URL to an address: what each form means, and that no error shows a password."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from headwater.errors import InvalidInput
from headwater.store.url import URL_VARIABLE, Address, resolve

HOME = Path("/home/of/the/embedded/store")


def single(safe: str, **options: Any) -> Address:
    nodes = ((options["host"], options["port"]),) if "host" in options else ()
    return Address("single", safe, options, nodes)


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("redis://", single("redis://localhost:6379", host="localhost", port=6379, db=0)),
        ("redis://h", single("redis://h:6379", host="h", port=6379, db=0)),
        ("redis://h:7000/3", single("redis://h:7000/3", host="h", port=7000, db=3)),
        ("redis://h/", single("redis://h:6379", host="h", port=6379, db=0)),
        (
            "redis://[::1]:7000",
            single("redis://[::1]:7000", host="::1", port=7000, db=0),
        ),
        ("redis://[::1]", single("redis://[::1]:6379", host="::1", port=6379, db=0)),
        (
            "redis://:se%2Fcret@h",
            single("redis://h:6379", password="se/cret", host="h", port=6379, db=0),
        ),
        (
            "redis://me:p%40ss:word@h",
            single(
                "redis://h:6379", username="me", password="p@ss:word", host="h", port=6379, db=0
            ),
        ),
        (
            "redis://me:p@ss@h",
            single("redis://h:6379", username="me", password="p@ss", host="h", port=6379, db=0),
        ),
        ("unix:///run/r.sock", single("unix:///run/r.sock", unix_socket_path="/run/r.sock", db=0)),
        (
            "unix://me:pw@/run/my%20r.sock?db=2",
            single(
                "unix:///run/my r.sock?db=2",
                unix_socket_path="/run/my r.sock",
                db=2,
                username="me",
                password="pw",
            ),
        ),
        (
            "rediss://h:7000?ssl_ca_certs=/ca.pem&ssl_cert_reqs=optional",
            single(
                "rediss://h:7000",
                ssl=True,
                ssl_ca_certs="/ca.pem",
                ssl_cert_reqs="optional",
                host="h",
                port=7000,
                db=0,
            ),
        ),
        (
            "redis+cluster://me:pw@a:1,b,[::1]:3",
            Address(
                "cluster",
                "redis+cluster://a:1,b:6379,[::1]:3",
                {"username": "me", "password": "pw"},
                (("a", 1), ("b", 6379), ("::1", 3)),
            ),
        ),
        (
            "rediss+cluster://a:1",
            Address("cluster", "rediss+cluster://a:1", {"ssl": True}, (("a", 1),)),
        ),
        (
            "redis+sentinel://me:pw@a,b:1/log/2?sentinel_username=s&sentinel_password=s%26w",
            Address(
                "sentinel",
                "redis+sentinel://a:26379,b:1/log/2",
                {"username": "me", "password": "pw", "db": 2},
                (("a", 26379), ("b", 1)),
                service="log",
                sentinel_options={"username": "s", "password": "s&w"},
            ),
        ),
        (
            "rediss+sentinel://a/my%20log?ssl_ca_certs=/ca.pem",
            Address(
                "sentinel",
                "rediss+sentinel://a:26379/my log",
                {"ssl": True, "ssl_ca_certs": "/ca.pem", "db": 0},
                (("a", 26379),),
                service="my log",
                sentinel_options={"ssl": True, "ssl_ca_certs": "/ca.pem"},
            ),
        ),
        (
            "embedded:///data/dir",
            Address("embedded", "embedded:///data/dir", {}, directory=Path("/data/dir")),
        ),
        (
            "embedded:///data/my%20dir",
            Address("embedded", "embedded:///data/my dir", {}, directory=Path("/data/my dir")),
        ),
        ("embedded:", Address("embedded", f"embedded://{HOME}", {}, directory=HOME)),
        ("embedded://", Address("embedded", f"embedded://{HOME}", {}, directory=HOME)),
    ],
)
def test_every_form_of_url_names_its_store(url: str, address: Address) -> None:
    assert resolve(url, HOME)._asdict() == address._asdict()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost",
        "localhost:6379",
        "redis://a..b",
        "redis://\udcff",
        "http://h",
        "redis:h",
        "redis:/h",
        "redis://h:port",
        "redis://h:0",
        "redis://h:65536",
        "redis://h:-1",
        "redis://:7000",
        "redis://h/db",
        "redis://h/-1",
        "redis://h/1/2",
        "redis://h?db=1",
        "redis://h?ssl_ca_certs=/ca.pem",
        "redis://h#1",
        "redis://a,b",
        "redis://a,",
        "redis://[::1",
        "redis://::1",
        "redis://[h]:1",
        "redis://[::1]x",
        "redis://h:",
        "redis://h:١",
        "redis://h\n",
        "redis://h\t:1",
        "rediss://h?ssl_cert_reqs=perhaps",
        "redis+cluster://a,b/1",
        "redis+sentinel://a",
        "redis+sentinel://a/",
        "redis+sentinel://a/log/x",
        "redis+sentinel://a/log?password=x",
        "redis://a?sentinel_password=x",
        "unix://",
        "unix:///",
        "unix://r.sock",
        "unix://run/r.sock",
        "unix:///r.sock?db=one",
        "unix:///r.sock?mode=1",
    ],
)
def test_a_url_that_cannot_be_meant_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        resolve(url, HOME)


@pytest.mark.parametrize(
    ("url", "cure"),
    [
        ("localhost:6379", "did you mean redis://localhost:6379?"),
        ("redis//localhost:6379", "did you mean redis://localhost:6379?"),
        ("redis://localhost:99999", "use one from 1 to 65535"),
        ("localhost", "it begins with one of"),
    ],
)
def test_a_url_that_is_nearly_one_is_refused_with_its_cure(url: str, cure: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(cure)):
        resolve(url, Path("d"))


def test_a_url_of_the_environment_is_said_to_come_from_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HEADWATER_URL", "nonsense")
    with pytest.raises(InvalidInput, match=r"what \$HEADWATER_URL or a profile says is not"):
        resolve(None, Path("d"))


@pytest.mark.parametrize(
    "url",
    [
        "pa55word",
        "me:pa55word@h",
        "redis://me:pa55/word@h:6379",
        "redis://me:/pa55word@h:6379",
        "redis://me:pa55?word@h:6379",
        "redis://me:pa55#word@h:6379",
        "redis://me:pa55word",
        "redis://:pa55word",
        "redis://me:pa55word@h:x",
        "redis://me:pa55word@h:99999",
        "redis://me:pa55word@a,b",
        "redis://me:pa55word@h/x",
        "redis://me:pa55word@h?x=1",
        "redis://me:pa55word@[h",
        "redis://me:pa55word\x07@h",
        "redis+cluster://me:pa55word@a,b/1",
        "redis+sentinel://me:pa55word@a/log/x",
        "redis+sentinel://a/log?sentinel_password=pa55@word",
        "redis+sentinel://a/log?sentinel_password=pa55word&x=1",
        "unix://me:pa55word@h/r.sock",
    ],
)
def test_no_error_about_a_url_shows_its_password(url: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        resolve(url, HOME)
    assert "pa55" not in str(caught.value)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_an_address_shows_itself_without_its_secrets() -> None:
    address = resolve("redis://me:secret@h", HOME)
    assert repr(address) == "Address('redis://h:6379')"


def test_without_a_url_the_environment_decides_then_the_embedded_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(URL_VARIABLE, "redis://h:7000")
    assert resolve(None, HOME).safe == "redis://h:7000"
    assert resolve("redis://other", HOME).safe == "redis://other:6379"
    monkeypatch.setenv(URL_VARIABLE, "")
    assert resolve(None, HOME).directory == HOME
    monkeypatch.delenv(URL_VARIABLE)
    assert resolve(None, HOME).directory == HOME
