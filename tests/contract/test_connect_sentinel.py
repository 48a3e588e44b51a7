"""Connecting by sentinels: the primary is found, followed through failovers, and never guessed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

import headwater
from headwater.errors import AccessDenied, InvalidInput, StoreError, StoreUnreachable
from headwater.store.doctor import examine
from headwater.timeline import Farm
from tests.support import blocking
from tests.support.sentinels import SERVICE, Watched, sentinel_url
from tests.support.servers import Server, free_ports
from tests.support.stores import works

Dial = Callable[[str | None], headwater.Headwater]
PASSWORD = "open-sesame"


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    with Watched(tmp_path_factory.mktemp("sentinel"), PASSWORD) as watched:
        yield watched


@pytest.fixture(scope="module")
def url(watched: Watched) -> str:
    return f"{watched.url}?sentinel_password={PASSWORD}"


def test_both_clients_follow_the_primary(
    tmp_path_factory: pytest.TempPathFactory, loop: blocking.Loop
) -> None:
    with Watched(tmp_path_factory.mktemp("failover")) as watched:
        opened = [headwater.connect(watched.url), blocking.connect(loop, watched.url)]
        streams = [hw.stream(f"s-{place}") for place, hw in enumerate(opened)]
        for stream in streams:
            stream.write("t", b"before")
        watched.settle()
        watched.primary.kill()
        for stream in streams:
            assert list(stream.write_many([("t", b"after")], producer="p", sequence=1)) == [2]
            values = [message.value for message in stream.read(1, 9) if message]
            assert values == [b"before", b"after"]
        # It believes that it is the primary until a sentinel tells it otherwise.
        watched.primary.restart()
        opened.append(headwater.connect(watched.url))
        for hw in opened:
            assert works(hw)
            hw.close()
        with watched.primary.client() as old, watched.replica.client() as new:
            assert new.dbsize() > old.dbsize(), "nobody wrote to the primary that came back"


def test_a_sentinel_has_a_password_of_its_own(watched: Watched, url: str, dial: Dial) -> None:
    hw = dial(url)
    assert works(hw)
    assert PASSWORD not in repr(hw)
    assert repr(hw) == repr(dial(f"{url}&sentinel_username=default"))
    with pytest.raises(AccessDenied, match="sentinel_password") as denied:
        dial(watched.url)
    assert denied.value.lasting
    wrong = f"{watched.url}?sentinel_password=guessed-wrong"
    with pytest.raises(AccessDenied) as denied:
        dial(wrong)
    assert "guessed-wrong" not in str(denied.value)


def test_one_sentinel_that_answers_is_enough(url: str, dial: Dial) -> None:
    (nobody,) = free_ports(1)
    assert works(dial(url.replace("//", f"//127.0.0.1:{nobody},")))


def test_sentinels_that_are_away_are_waited_for_and_named(dial_at_once: Dial) -> None:
    (nobody,) = free_ports(1)
    with pytest.raises(
        StoreUnreachable, match=f"no sentinel names the primary .*:{nobody}"
    ) as away:
        dial_at_once(f"redis+sentinel://me:secret@127.0.0.1:{nobody}/{SERVICE}")
    assert not away.value.lasting
    assert "secret" not in str(away.value)


def test_what_waiting_does_not_cure_is_said_at_once(
    watched: Watched, url: str, server: Server, dial: Dial
) -> None:
    begun = time.monotonic()
    for wrong, why in {
        url.replace(f"/{SERVICE}", "/unknown"): "know no service 'unknown'",
        sentinel_url(server): "is no sentinel",
        f"redis://:{PASSWORD}@127.0.0.1:{watched.sentinel.port}": "redis\\+sentinel://",
    }.items():
        with pytest.raises(StoreError, match=why) as refused:
            dial(wrong)
        assert refused.value.lasting
        assert PASSWORD not in str(refused.value)
    assert time.monotonic() - begun < 20


def test_a_replica_is_never_taken_for_the_primary(watched: Watched, dial_at_once: Dial) -> None:
    with (
        watched.watch(watched.replica) as misled,
        pytest.raises(StoreUnreachable, match="not a primary yet"),
    ):
        dial_at_once(f"{sentinel_url(misled)}?sentinel_password={PASSWORD}")


def test_the_doctor_examines_the_primary(url: str) -> None:
    report = examine(url)
    assert {finding.check for finding in report.findings} >= {"persistence", "eviction"}
    assert PASSWORD not in str(report)


def test_a_farm_names_its_servers_itself(url: str) -> None:
    with pytest.raises(InvalidInput, match="sentinels"):
        Farm.open(url)
