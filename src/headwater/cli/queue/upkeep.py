"""Looking after queues: which there are, how they stand, settings, pause, purging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from headwater import views
from headwater.cli import output
from headwater.cli.limits import (
    HandOutRate,
    InFlight,
    NoLimits,
    change_limits,
    limits_text,
    wanted_limits,
)
from headwater.cli.options import AsJson, Count, StoreUrl, Yes, confirm, connected
from headwater.cli.queue.cli_types import QueueName, check_ids, known_queue, show_items

if TYPE_CHECKING:
    from headwater.queue.types import QueueSettings, QueueStats

_TIMES = {"ready": "due", "delayed": "due", "unacked": "deadline", "dead": "given up"}


def list_queues(store: StoreUrl = None, as_json: AsJson = False) -> None:
    """List all queues, with their messages by state."""
    with connected(store) as hw:
        found = hw.store.run(views.overview.all_queues())
    output.show_list(
        found,
        views.queues.QueueView.of,
        {
            "queue": lambda facts: facts.name,
            "ready": lambda facts: facts.ready,
            "delayed": lambda facts: facts.delayed,
            "unacked": lambda facts: facts.unacked,
            "dead": lambda facts: facts.dead,
            "damaged": lambda facts: facts.damaged,
            "oldest": lambda facts: output.age_text(facts.oldest_ms),
            "state": _state,
        },
        as_json,
        nothing="no queues: a queue is created by its first push",
        styles={"paused": "yellow", "runs": "green"},
    )


def _state(facts: QueueStats) -> str:
    return "paused" if facts.paused else "runs"


def stats(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Show the messages of a queue by state, their age, rates and settings."""
    with known_queue(store, name) as queue:
        facts = queue.stats()
    if as_json:
        output.show_json(views.queues.QueueView.of(facts))
        return
    output.show_facts(
        [
            ("queue", facts.name),
            ("state", _state(facts)),
            ("ready", facts.ready),
            ("delayed", facts.delayed),
            ("unacked", facts.unacked),
            ("dead", facts.dead),
            ("damaged", facts.damaged),
            ("oldest ready", output.age_text(facts.oldest_ms)),
            ("oldest delayed", output.age_text(facts.oldest_delayed_ms)),
            ("oldest unacked", output.age_text(facts.oldest_unacked_ms)),
            ("oldest dead", output.age_text(facts.oldest_dead_ms)),
            ("waited", _waited(facts)),
            ("pushed", f"{facts.pushed}, now {facts.pushed_per_s:.1f}/s"),
            ("popped", f"{facts.popped}, now {facts.popped_per_s:.1f}/s"),
            ("acked", f"{facts.acked}, now {facts.acked_per_s:.1f}/s"),
            ("expired", facts.expired),
            ("waiting consumers", facts.waiting),
            *_settings(facts.settings),
            ("limits", facts.limits),
        ]
    )


def _waited(facts: QueueStats) -> str | None:
    if not sum(facts.waits):
        return "not kept since the server started" if facts.popped else None
    spans = [("half", 0.5), ("95%", 0.95), ("99%", 0.99)]
    bounds = [(words, facts.waited_up_to_ms(share)) for words, share in spans]
    return ", ".join(
        f"{words} over a day" if bound is None else f"{words} up to {bound / 1000:g} s"
        for words, bound in bounds
    )


def _settings(settings: QueueSettings) -> list[tuple[str, object]]:
    return [
        ("attempts", settings.max_attempts or "no limit"),
        ("back-off", _backoff(settings)),
    ]


def _backoff(settings: QueueSettings) -> str:
    if settings.backoff == "none":
        return "none"
    if settings.backoff == "fixed":
        return f"fixed, {settings.backoff_ms} ms"
    longest = f"{settings.backoff_ms} ms up to {settings.longest_backoff_ms} ms"
    return f"exponential, {longest}, of that half to all"


def peek(
    name: QueueName,
    count: Count = 10,
    state: Annotated[
        Literal["ready", "delayed", "unacked", "dead", "damaged"],
        typer.Option(help="Which messages."),
    ] = "ready",
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the messages that come first, without taking them."""
    with known_queue(store, name) as queue:
        found = queue.peek(count, state=state)
    show_items(found, as_json, _TIMES.get(state, "due"), f"no message is {state}")


def configure(
    name: QueueName,
    max_attempts: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Give a message up after N attempts; 0: never."),
    ] = None,
    backoff: Annotated[
        Literal["none", "fixed", "exponential"] | None,
        typer.Option(
            metavar="HOW",
            help="How the delay between attempts grows: none, fixed or exponential.",
        ),
    ] = None,
    backoff_ms: Annotated[
        int | None, typer.Option(min=0, help="Milliseconds before the second attempt.")
    ] = None,
    longest_backoff_ms: Annotated[
        int | None, typer.Option(min=0, help="Milliseconds between two attempts at most.")
    ] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Set how often messages are tried, and the delay in between; prints the settings in force."""
    with connected(store) as hw:
        settings = hw.queue(name).configure(
            max_attempts=max_attempts,
            backoff=backoff,
            backoff_ms=backoff_ms,
            longest_backoff_ms=longest_backoff_ms,
        )
    if as_json:
        output.show_json(views.queues.QueueSettingsView.of(settings))
    else:
        output.show_facts(_settings(settings))
    if settings.backoff == "none" and (backoff_ms or longest_backoff_ms):
        output.warn("the back-off is none, so that nothing is delayed; add --backoff fixed")


def limit(
    name: QueueName,
    max_in_flight: InFlight = None,
    rate: HandOutRate = None,
    none: NoLimits = False,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the limits of a queue, or set all of them: what is not named is not limited."""
    wanted = wanted_limits(max_in_flight, rate, none)
    with connected(store) as hw:
        queue = hw.queue(name)
        limits, before = change_limits(queue.limit, queue.stats().limits, wanted)
    done = views.limits.QueueLimitsView(queue=name, limits=limits, before=before)
    output.answer(done, limits_text(limits, before), as_json)


def promote(
    name: QueueName,
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The messages, by their ids.")],
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Deliver delayed messages now."""
    with known_queue(store, name) as queue:
        count = queue.promote(check_ids(ids))
    done = views.queues.QueuePromotedView(queue=name, promoted=count)
    output.answer(done, f"promoted: {count}", as_json)


def pause(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Deliver nothing until resume; pushes and acks still work."""
    with known_queue(store, name) as queue:
        changed = queue.pause()
    _show_state(name, "paused", changed, as_json)


def resume(name: QueueName, store: StoreUrl = None, as_json: AsJson = False) -> None:
    """Deliver messages again."""
    with known_queue(store, name) as queue:
        changed = queue.resume()
    _show_state(name, "runs", changed, as_json)


def _show_state(name: str, state: Literal["paused", "runs"], changed: bool, as_json: bool) -> None:
    done = views.queues.QueueStateView(queue=name, state=state, changed=changed)
    output.answer(done, state if changed else f"{state}, as before", as_json)


def purge(
    name: QueueName, yes: Yes = False, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Remove all messages of a queue, dead letters too; settings stay."""
    with known_queue(store, name) as queue:
        confirm(f"Remove {_size(queue.stats())} of {name}?", yes)
        count = queue.purge()
    done = views.queues.PurgedView(queue=name, purged=count)
    output.answer(done, f"purged {output.counted(count, 'message')}", as_json)


def delete(
    name: QueueName, yes: Yes = False, store: StoreUrl = None, as_json: AsJson = False
) -> None:
    """Remove a queue with everything that belongs to it permanently."""
    with known_queue(store, name) as queue:
        confirm(f"Delete {name} with {_size(queue.stats())}?", yes)
        queue.delete()
    output.answer(views.queues.QueueDeletedView(queue=name), "deleted", as_json)


def _size(facts: QueueStats) -> str:
    messages = output.counted(facts.ready + facts.delayed + facts.unacked, "message")
    return f"{messages} and {output.counted(facts.dead, 'dead letter')}"
