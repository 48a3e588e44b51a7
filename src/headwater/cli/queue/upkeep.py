"""Looking after queues: which there are, how they stand, settings, pause, purging."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

import typer

from headwater.cli import output
from headwater.cli.options import AsJson, StoreUrl, connected
from headwater.cli.queue.cli_types import QueueName, known_queue, show_items

_TIMES = {"ready": "due", "delayed": "due", "unacked": "deadline", "dead": "given up"}


def list_queues(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all queues and how they stand."""
    with connected(store) as hw:
        found = [hw.queue(name).stats() for name in hw.queues()]
    if as_json:
        output.show_json(*(asdict(facts) for facts in found))
        return
    output.show_table(
        ["queue", "ready", "delayed", "unacked", "dead", "damaged", "oldest", "state"],
        [
            (
                facts.name,
                facts.ready,
                facts.delayed,
                facts.unacked,
                facts.dead,
                facts.damaged,
                _age(facts.oldest_ms),
                "paused" if facts.paused else "runs",
            )
            for facts in found
        ],
        styles={"paused": "yellow", "runs": "green"},
    )


def stats(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Say how a queue stands."""
    with known_queue(store, name) as queue:
        facts = queue.stats()
    if as_json:
        output.show_json(asdict(facts))
        return
    settings = facts.settings
    rest: str = settings.backoff
    if rest != "none":
        rest += f", {settings.backoff_ms} ms"
    if settings.backoff == "exponential":
        rest += f" up to {settings.longest_backoff_ms} ms"
    output.show_facts(
        [
            ("queue", facts.name),
            ("state", "paused" if facts.paused else "runs"),
            ("ready", facts.ready),
            ("delayed", facts.delayed),
            ("unacked", facts.unacked),
            ("dead", facts.dead),
            ("damaged", facts.damaged),
            ("oldest", _age(facts.oldest_ms)),
            ("pushed", f"{facts.pushed}, now {facts.pushed_per_s:.1f}/s"),
            ("popped", f"{facts.popped}, now {facts.popped_per_s:.1f}/s"),
            ("acked", f"{facts.acked}, now {facts.acked_per_s:.1f}/s"),
            ("expired", facts.expired),
            ("waiting consumers", facts.waiting),
            ("attempts", settings.max_attempts or "no limit"),
            ("back-off", rest),
        ]
    )


def peek(
    name: QueueName,
    count: Annotated[int, typer.Option("--count", "-c", min=0, help="How many at most.")] = 10,
    state: Annotated[
        Literal["ready", "delayed", "unacked", "dead", "damaged"],
        typer.Option(help="Which messages."),
    ] = "ready",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages that come first, without taking them."""
    with known_queue(store, name) as queue:
        show_items(queue.peek(count, state=state), as_json, _TIMES.get(state, "due"))


def configure(
    name: QueueName,
    max_attempts: Annotated[
        int | None, typer.Option(min=0, help="Give a message up after so many; 0 for no limit.")
    ] = None,
    backoff: Annotated[
        Literal["none", "fixed", "exponential"] | None,
        typer.Option(help="How messages rest between attempts."),
    ] = None,
    backoff_ms: Annotated[int | None, typer.Option(min=0, help="The first rest.")] = None,
    longest_backoff_ms: Annotated[int | None, typer.Option(min=0, help="The longest rest.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set how often messages are tried, and how long they rest in between; say how it is then."""
    with connected(store) as hw:
        settings = hw.queue(name).configure(
            max_attempts=max_attempts,
            backoff=backoff,
            backoff_ms=backoff_ms,
            longest_backoff_ms=longest_backoff_ms,
        )
    if as_json:
        output.show_json(asdict(settings))
    else:
        output.show_facts(asdict(settings).items())


def pause(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Hand out nothing until resume; pushes and acks go on."""
    with connected(store) as hw:
        changed = hw.queue(name).pause()
    _tell_change("paused", changed, as_json)


def resume(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Hand out messages again."""
    with connected(store) as hw:
        changed = hw.queue(name).resume()
    _tell_change("runs", changed, as_json)


def purge(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Forget all messages of a queue, dead letters too; settings stay."""
    with known_queue(store, name) as queue:
        count = queue.purge()
    if as_json:
        output.show_json({"queue": name, "purged": count})
    else:
        output.say(f"purged {count} messages")


def delete(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Remove a queue with all that belongs to it."""
    with known_queue(store, name) as queue:
        queue.delete()
    if as_json:
        output.show_json({"queue": name, "deleted": True})
    else:
        output.say("deleted")


def _tell_change(state: str, changed: bool, as_json: bool) -> None:
    if as_json:
        output.show_json({"state": state, "changed": changed})
    else:
        output.say(state if changed else f"{state}, as before")


def _age(ms: int | None) -> str | None:
    return None if ms is None else f"{ms / 1000:.1f} s"
