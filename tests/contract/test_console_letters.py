"""Dead letters on the console and by jobs: chosen, taken back in time, moved at a rate, stopped."""

from __future__ import annotations

import html
import re
import secrets
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest

import headwater
from headwater import Headwater
from headwater.serve.console.service import Console
from headwater.whole_store.letters import letter_box
from tests.support.api import Answer, ApiClient, ApiServer
from tests.support.console import send
from tests.support.servers import until
from tests.support.stores import Stores

JOBS = "/v1/letters/jobs"


@pytest.fixture(scope="module")
def url(stores: Stores) -> str:
    return stores.url("plain")


@pytest.fixture(scope="module")
def server(url: str) -> Iterator[ApiServer]:
    with ApiServer(url, front=Console) as server:
        yield server


@pytest.fixture
def browser(server: ApiServer) -> Iterator[ApiClient]:
    client = server.client()
    yield client
    client.close()


@pytest.fixture
def hw(url: str) -> Iterator[Headwater]:
    with headwater.connect(url) as hw:
        yield hw


class Dead:
    """Six letters of a group, and four of a queue; every other failed by a timeout."""

    def __init__(self, hw: Headwater) -> None:
        self.name = f"dead-{secrets.token_hex(4)}"
        stream = hw.stream(self.name)
        stream.write_many([(f"t{number}", b"v") for number in range(6)])
        self.group = stream.group("mail", dead_letters=True)
        self.group.read(6, ack_ms=60_000)
        self.group.bury(1, 3, 5, error=TimeoutError("late"))
        self.group.bury(2, 4, 6, error="no such ride")
        self.queue = hw.queue(self.name)
        self.queue.push_many([b"a", b"b", b"c", b"d"])
        held = self.queue.pop(4, ack_ms=60_000)
        self.queue.bury(*held[::2], error=TimeoutError("late"))
        self.queue.bury(*held[1::2], error="no such ride")
        self.places = [{"stream": self.name, "group": "mail"}, {"queue": self.name}]

    @property
    def left(self) -> tuple[int, int]:
        return self.group.info().dead, self.queue.stats().dead


@pytest.fixture
def dead(hw: Headwater) -> Dead:
    return Dead(hw)


def text_of(answer: Answer) -> str:
    return html.unescape(answer.body.decode())


def job_of(client: ApiClient, job: str) -> dict[str, Any]:
    found = [one for one in client.get(JOBS).body["jobs"] if one["job"] == job]
    return dict(found[0])


def ended(client: ApiClient, job: str) -> dict[str, Any]:
    until(lambda: job_of(client, job)["state"] in ("done", "stopped", "failed"))
    return job_of(client, job)


def test_a_job_moves_what_fits_in_groups_and_queues_together(
    browser: ApiClient, dead: Dead
) -> None:
    asked = {"action": "redrive", "places": dead.places, "matching": {"error": "LATE"}}
    begun = browser.post(JOBS, asked)
    assert (begun.status, begun.body["total"]) == (202, 10)
    done = ended(browser, begun.body["job"])
    assert (done["state"], done["done"], done["looked"]) == ("done", 5, 10)
    assert dead.left == (3, 2)
    named = [
        {"stream": dead.name, "group": "mail", "offsets": [2, 5]},
        {"queue": dead.name, "ids": [dead.queue.dead()[0].id]},
    ]
    begun = browser.post(JOBS, {"action": "discard", "places": named})
    assert ended(browser, begun.body["job"])["done"] == 2, "one was redriven before"
    assert dead.left == (2, 1)


def test_what_is_shown_of_a_job_does_not_name_its_letters(browser: ApiClient, dead: Dead) -> None:
    place = {"stream": dead.name, "group": "mail"}
    asked = {"action": "redrive", "places": [place | {"offsets": [1, 2]}], "delay_ms": 600_000}
    begun = browser.post(JOBS, asked).body
    assert (begun["places"], begun["total"]) == ([place], 2)
    assert job_of(browser, begun["job"])["state"] == "waiting"
    assert browser.get("/console/dead").status == 200
    browser.post("/v1/letters/stop", {"job": begun["job"]})


def test_a_job_at_a_rate_is_stopped_and_leaves_the_rest(browser: ApiClient, dead: Dead) -> None:
    asked = {"action": "redrive", "places": dead.places, "rate_per_s": 1}
    job = browser.post(JOBS, asked).body["job"]
    until(lambda: sum(dead.left) < 10)
    stopped = browser.post("/v1/letters/stop", {"job": job}).body["jobs"][0]
    assert stopped["state"] == "stopped"
    assert sum(dead.left) == 10 - stopped["done"] > 5


def test_a_job_is_stopped_by_another_server(browser: ApiClient, url: str, dead: Dead) -> None:
    asked = {"action": "discard", "places": dead.places, "delay_ms": 600_000}
    job = browser.post(JOBS, asked).body["job"]
    with ApiServer(url) as other:
        client = other.client()
        assert job_of(client, job)["state"] == "waiting"
        assert client.post("/v1/letters/stop", {"job": job}).body["jobs"][0]["state"] == "stopping"
        client.close()
    assert ended(browser, job)["state"] == "stopped"
    assert dead.left == (6, 4)


def test_a_server_that_ends_hands_its_jobs_over(url: str, browser: ApiClient, dead: Dead) -> None:
    with ApiServer(url) as ending:
        client = ending.client()
        asked = {"action": "discard", "places": dead.places, "delay_ms": 600_000}
        job = client.post(JOBS, asked).body["job"]
    until(lambda: job_of(browser, job)["state"] == "waiting")
    assert browser.post("/v1/letters/stop", {"job": job}).body["jobs"][0]["state"] in (
        "stopped",
        "stopping",
    )
    assert ended(browser, job)["state"] == "stopped"
    assert dead.left == (6, 4)


def test_a_message_that_fails_again_is_left_alone_by_whoever_repeats_a_step(
    hw: Headwater, dead: Dead
) -> None:
    group_box, queue_box = letter_box(dead.name, "mail"), letter_box(dead.name, None)
    end = hw.store.run(group_box.end())
    queue_end = hw.store.run(queue_box.end())
    ids = {dead.queue.dead()[0].id}

    def step() -> tuple[int, int]:
        named = group_box.walk("redrive", None, "", end, 9, [1])
        walked = queue_box.walk("redrive", None, "", queue_end, 9, ids)
        return hw.store.run(named).done, hw.store.run(walked).done

    assert step() == (1, 1)
    dead.group.read(1, ack_ms=60_000)
    dead.group.bury(1, error="again")
    dead.queue.bury(*dead.queue.pop(1, ack_ms=60_000), error="again")
    assert dead.left == (6, 4)
    assert step() == (0, 0)


@pytest.mark.parametrize(
    "places",
    [
        [],
        [{}],
        [{"stream": "s"}],
        [{"stream": "s", "group": "g", "queue": "q"}],
        [{"queue": "q", "offsets": [1]}],
        [{"stream": "s", "group": "g", "offsets": [{"first": 1, "last": 10**9}]}],
    ],
)
def test_what_names_no_place_is_refused(browser: ApiClient, places: Any) -> None:
    assert browser.post(JOBS, {"action": "discard", "places": places}).status == 400


def test_letters_are_filtered_and_ticked_on_the_page(browser: ApiClient, dead: Dead) -> None:
    place = f"g:{dead.name}/mail"
    page = text_of(browser.get("/console/dead?" + urlencode({"place": place, "error": "late"})))
    assert re.findall(r'value="g:[^"]*#(\d+)"', page) == ["5", "3", "1"]
    assert "3</b> match of 6 dead letters" in page
    ticked = {"do": "letters", "action": "discard", "which": "some", "l1": f"{place}#3"}
    bill = text_of(browser.get("/console/act?" + urlencode(ticked)))
    for words in (
        "Discard 1 dead letter",
        f"headwater stream discard {dead.name} mail 3",
        "undo it",
    ):
        assert words in bill
    nothing = browser.get("/console/act?do=letters&action=discard&which=some")
    assert nothing.status == 400
    assert dead.left == (6, 4), "a bill changes nothing"


def test_what_is_ticked_is_moved_whatever_the_filter_of_the_page(
    browser: ApiClient, dead: Dead
) -> None:
    one = dead.queue.dead(1)[0].id
    ticked = {"l1": f"g:{dead.name}/mail#3", "l2": f"q:{dead.name}#{one}"}
    form = {"do": "letters", "action": "discard", "which": "some", "tag": "t", **ticked}
    bill = text_of(browser.get("/console/act?" + urlencode(form)))
    assert "Discard 2 dead letters" in bill
    assert f"headwater queue discard {dead.name} {one}" in bill
    assert f'{{"queue": "{dead.name}", "ids": ["{one}"]}}' in bill


class Many:
    """More letters in a group and in a queue than a page looks at: the newest failed otherwise."""

    COUNT, NEWEST, LOOKED = 150, 20, 100

    def __init__(self, hw: Headwater) -> None:
        self.name = f"many-{secrets.token_hex(4)}"
        stream = hw.stream(self.name)
        stream.write_many([("t", b"v")] * self.COUNT)
        group = stream.group("mail", dead_letters=True)
        group.read(self.COUNT, ack_ms=60_000)
        queue = hw.queue(self.name)
        queue.push_many([b"v"] * self.COUNT)
        held = queue.pop(self.COUNT, ack_ms=60_000)
        for number in range(self.COUNT):
            if number < self.COUNT - self.NEWEST:
                error: Exception = TimeoutError(f"no answer from 10.0.0.{number} in 30 s")
            else:
                error = ValueError("no such ride")
            group.bury(number + 1, error=error)
            queue.bury(held[number], error=error)
        self.newest = {"g": str(self.COUNT), "q": held[-1].id}
        self.oldest = {"g": "1", "q": held[0].id}
        self.keys = {"g": f"g:{self.name}/mail", "q": f"q:{self.name}"}


@pytest.fixture(scope="module")
def many(url: str) -> Many:
    with headwater.connect(url) as hw:
        return Many(hw)


@pytest.mark.parametrize("kind", ["g", "q"])
def test_the_newest_letters_come_first_and_the_page_says_what_it_has_not_read(
    browser: ApiClient, many: Many, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr("headwater.serve.console.letters.LOOKED_AT", many.LOOKED)
    found: list[str] = []
    link = "/console/dead?" + urlencode({"place": many.keys[kind]})
    first = text_of(browser.get(link))
    assert f"The newest <b>{many.LOOKED}</b> of {many.COUNT} dead letters" in first
    while link:
        page = text_of(browser.get(link))
        found += re.findall(r'name="l\d+" value="[^"#]*#(\d+)"', page)
        onward = re.search(r'href="(/console/dead\?[^"]*)">(Older|Check more)', page)
        link = onward[1] if onward else ""
    assert (found[0], found[-1]) == (many.newest[kind], many.oldest[kind])
    assert len(set(found)) == len(found) == many.COUNT
    assert found == sorted(found, key=int, reverse=True)


def test_letters_are_grouped_by_their_error(browser: ApiClient, many: Many) -> None:
    page = text_of(browser.get("/console/dead?" + urlencode({"place": many.keys["g"]})))
    table = page.partition('id="errors"')[2].partition("</table>")[0]
    rows = re.findall(r'href="([^"]*)">([^<]*)</a></td><td[^>]*>([\d,]+)<', table)
    assert [(words, count) for _, words, count in rows] == [
        ("TimeoutError: no answer from #.#.#.# in # s", "130"),
        ("ValueError: no such ride", "20"),
    ]
    chosen = text_of(browser.get(rows[0][0]))
    assert "<b>130</b> match of 150 dead letters" in chosen


def test_all_that_match_are_counted_and_taken_back_in_time(browser: ApiClient, dead: Dead) -> None:
    fields = {"do": "letters", "action": "discard", "which": "all", "place": f"q:{dead.name}"}
    asked = {**fields, "error": "ride", "after": "2h", "rate": "5"}
    bill = text_of(browser.get("/console/act?" + urlencode(asked)))
    for words in (
        "Discard 2 dead letters",
        f"queue discard {dead.name} ",
        "--rate 5",
        "rate_per_s=5",
    ):
        assert words in bill
    assert send(browser, "/console/act", **fields, error="ride", rate="5").status == 303
    there = browser.get(JOBS).body["jobs"]
    (job,) = (one for one in there if one["places"] == [{"queue": dead.name}])
    assert (job["state"], job["rate_per_s"]) == ("waiting", 5)
    assert "starts soon, can be undone" in text_of(browser.get("/console/dead"))
    assert send(browser, "/console/act", do="letters-stop", job=job["job"]).status == 303
    assert job_of(browser, job["job"])["state"] == "stopped"
    assert dead.left == (6, 4)


def test_a_list_that_is_too_long_for_one_look_goes_on_to_every_letter(
    browser: ApiClient, dead: Dead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headwater.serve.console.letters.LOOKED_AT", 4)
    monkeypatch.setattr("headwater.serve.console.letters._SECONDS", 0.0)
    found: list[str] = []
    link = "?" + urlencode({"error": "late"})
    while link:
        page = text_of(browser.get("/console/dead" + link))
        found += re.findall(rf'value="([gq]:{dead.name}[^"]*)"', page)
        # What is not a letter is in the list of places.
        found = [one for one in found if "#" in one]
        goes_on = re.search(r'href="/console/dead(\?[^"]*)">Check more', page)
        assert not goes_on or "streams and queues" in page
        link = goes_on.group(1) if goes_on else ""
    ids = [item.id for item in dead.queue.dead() if item.cause and "late" in str(item.cause)]
    expected = [f"g:{dead.name}/mail#{origin}" for origin in (1, 3, 5)]
    assert sorted(found) == sorted(expected + [f"q:{dead.name}#{one}" for one in ids])
    assert browser.get("/console/dead?go=x").status == 400
    assert browser.get(f"/console/dead?go=s/{dead.name}/mail/x").status == 400
    assert browser.get("/console/dead?go=s/a/gone/7").status == 200


def test_a_job_everywhere_reaches_what_no_page_has_looked_at(
    browser: ApiClient, hw: Headwater, dead: Dead, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = f"only {dead.name}"
    held = dead.queue.push_many([b"x", b"y"]) and dead.queue.pop(2, ack_ms=60_000)
    dead.queue.bury(*held, error=word)
    other = hw.stream(f"{dead.name}-other")
    other.write("t", b"v")
    group = other.group("late", dead_letters=True)
    group.bury(*group.read(1, ack_ms=60_000), error=word)
    monkeypatch.setattr("headwater.serve.console.letters._COUNTED", 1)
    monkeypatch.setattr("headwater.serve.console.letters._COUNTED_S", 0.0)
    fields = {"do": "letters", "action": "redrive", "which": "all", "error": word}
    bill = text_of(browser.get("/console/act?" + urlencode(fields)))
    for words in ("at least", "streams and queues were checked", '"everywhere": true'):
        assert words in bill
    body = {"action": "redrive", "everywhere": True, "matching": {"error": word}}
    begun = browser.post(JOBS, body)
    assert begun.status == 202
    done = ended(browser, begun.body["job"])
    assert (done["state"], done["done"], done["everywhere"]) == ("done", 3, True)
    assert dead.left == (6, 4)
    assert browser.post(JOBS, body | {"places": dead.places}).status == 400


def test_a_bill_whose_counts_have_changed_does_nothing_and_shows_the_new_one(
    server: ApiServer, dead: Dead
) -> None:
    one, other = server.client(), server.client()
    asked = {"do": "purge", "queue": dead.name}
    bill = text_of(one.get("/console/act?" + urlencode(asked)))
    agreed = re.findall(r'name="agreed" value="([^"]+)"', bill)[0]
    pushed = {"do": "push", "queue": dead.name, "value": "x"}
    assert send(other, "/console/act", **pushed).status == 303
    form = urlencode(asked | {"agreed": agreed}).encode()
    media = "application/x-www-form-urlencoded"
    refused = one.ask("POST", "/console/act", form, media=media)
    assert refused.status == 409
    assert "drops 5 messages" in text_of(refused)
    assert (dead.queue.stats().dead, dead.queue.stats().ready) == (4, 1)
    agreed = re.findall(r'name="agreed" value="([^"]+)"', text_of(refused))[0]
    form = urlencode(asked | {"agreed": agreed}).encode()
    assert one.ask("POST", "/console/act", form, media=media).status == 303
    assert dead.queue.stats().dead == 0


def test_a_queue_with_the_name_of_a_stream_is_reached_behind_it(
    browser: ApiClient, dead: Dead
) -> None:
    letters, on = f'value="q:{dead.name}#', f"/console/dead?go=s/{dead.name}/mail/"
    while letters not in (page := text_of(browser.get(on))):
        further = re.search(r'href="(/console/dead\?[^"]*)">Check more<', page)
        assert further is not None, "other objects of the store may lie between, and no more"
        on = further[1]
