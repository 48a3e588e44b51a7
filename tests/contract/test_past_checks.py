"""Alarms say since when, also after a restart; checks are seen where they are noted."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

import headwater
from headwater import Headwater
from headwater.cli.main import app
from headwater.metrics.alarm_watch import ALARMS
from headwater.serve.console.service import Console
from headwater.store.doctor import VERIFIED, VerifyNote, note_verify, past_checks
from tests.support.api import ApiServer
from tests.support.servers import Server


@pytest.fixture(scope="module")
def hw(server: Server) -> Iterator[Headwater]:
    with headwater.connect(server.url) as hw:
        yield hw


def overview(api: ApiServer) -> str:
    return html.unescape(api.client().get("/console").body.decode())


def since(page: str, words: str) -> tuple[str, str]:
    """Return whether an alarm says since when or when it was seen first, and the exact time."""
    line = next(li for li in re.findall(r"<li class=.*?</li>", page, re.DOTALL) if words in li)
    found = re.search(r'class="since">(since|first seen).*?datetime="([^"]*)"', line, re.DOTALL)
    assert found is not None, line
    return found[1], found[2]


def test_an_alarm_says_since_when_also_after_a_restart_of_the_server(
    server: Server, hw: Headwater
) -> None:
    hw.queue("letters").push(b"v")
    hw.queue("letters").pause()
    with ApiServer(server.url, front=Console) as api:
        page = overview(api)
        first = since(page, "letters is paused")
        assert first[0] == "first seen"
        assert '<input type="hidden" name="do" value="queue-state">' in page, "with a button"
    with ApiServer(server.url, front=Console) as api:
        assert since(overview(api), "letters is paused") == first
        hw.queue("letters").resume()
    with ApiServer(server.url, front=Console) as api, server.client() as raw:
        assert "letters is paused" not in overview(api)
        assert raw.hlen(ALARMS) == 0, "it is forgotten when it is over"


def test_a_read_only_server_has_no_buttons_and_notes_nothing(server: Server, hw: Headwater) -> None:
    hw.queue("mails").push(b"v")
    hw.queue("mails").pause()
    with ApiServer(server.url, front=Console, read_only=True) as api, server.client() as raw:
        page = overview(api)
        assert since(page, "mails is paused")[0] == "first seen"
        assert 'value="queue-state"' not in page
        assert raw.hlen(ALARMS) == 0
    hw.queue("mails").resume()


def test_alarms_are_shown_of_a_store_that_refuses_writes(server: Server, hw: Headwater) -> None:
    hw.queue("bills").push(b"v")
    hw.queue("bills").pause()
    with ApiServer(server.url, front=Console) as api, server.client() as raw:
        raw.config_set("min-replicas-to-write", 1)
        try:
            first = since(overview(api), "bills is paused")
            assert since(overview(api), "bills is paused") == first
            assert raw.hlen(ALARMS) == 0
        finally:
            raw.config_set("min-replicas-to-write", 0)
    hw.queue("bills").resume()


def test_the_last_verify_and_scrub_are_shown_where_they_are_noted(
    server: Server, hw: Headwater
) -> None:
    assert hw.store.run(past_checks()) == (None, None)
    note = VerifyNote(812, 20.0, {"server": 3, "writer": 4}, 5000, 0, "1.0", "host")
    hw.store.run(note_verify(note))
    hw.store.run(note_verify(note))
    assert hw.scrub().defects == (), "the notes are known keys"
    found = hw.store.run(past_checks())
    assert found.verify is not None
    assert found.verify.note == note
    assert found.scrub is not None
    with ApiServer(server.url, front=Console) as api:
        page = overview(api)
        assert "0 anomalies" in page
        assert "in 7 kills, seed 812" in page
        assert "on a private store" in page
        assert "no damage" in page
    for words in (["doctor"], ["top", "--once"]):
        said = CliRunner().invoke(app, [*words, "--store", server.url])
        assert "seed 812, 7 kills" in " ".join(said.output.split()), said.output
    with server.client() as raw:
        assert raw.hlen(VERIFIED) == 1


def test_a_verify_notes_its_result_where_it_is_asked_to(server: Server, hw: Headwater) -> None:
    words = ["verify", "--seconds", "1", "--kills", "1", "--seed", "5", "--note-in", server.url]
    said = CliRunner().invoke(app, words)
    assert said.exit_code == 0, said.output
    found = hw.store.run(past_checks()).verify
    assert found is not None
    assert (found.note.seed, found.note.anomalies) == (5, 0)


def test_a_verify_prints_what_it_found_also_when_it_cannot_note_it() -> None:
    words = ["verify", "--seconds", "1", "--kills", "1", "--note-in", "redis://127.0.0.1:1"]
    said = CliRunner().invoke(app, words)
    assert said.exit_code != 0
    assert "nothing lost" in said.output
