"""What ``headwater doctor --json`` prints, taken apart; users with few rights, and their work."""

from __future__ import annotations

from typing import Any

import headwater
from tests.support.commands import run
from tests.support.servers import Server, until


def examine(url: str, *words: str) -> tuple[int, dict[str, Any]]:
    answer = run(url, "doctor", "--json", *words)
    assert answer.err == ""
    return answer.code, answer.row


def verdicts(report: dict[str, Any]) -> dict[str, str]:
    return {check["check"]: check["verdict"] for check in report["checks"]}


def found(report: dict[str, Any], name: str) -> str:
    (check,) = [check for check in report["checks"] if check["check"] == name]
    return f"{check['found']}; {check['cure']}"


def grant(server: Server, *words: str) -> str:
    """Give a user exactly these rights, and return its URL."""
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "limited", "reset", "on", ">hidden-word", *words)
    return f"redis://limited:hidden-word@127.0.0.1:{server.port}"


def use_everything(hw: headwater.Headwater) -> None:
    """Call every operation once."""
    stream = hw.stream("everything")
    stream.auto_compact()
    stream.retain(max_count=5000, max_age_ms=3_600_000, max_bytes=10**9)
    for n in range(3):
        stream.write("tag", b"one", backlog=4000)
        stream.write_many([(f"tag-{k}", b"many") for k in range(900)], producer="p", sequence=n)
    group = stream.group("g", dead_letters=True, max_pending=1000)
    group.read(10, ack_ms=1, expire_ms=1)
    until(group.bury)
    assert group.dead()
    group.redrive(5)
    group.discard(count=1)
    taken = group.read(10, block_ms=10, ack_ms=1000)
    group.nack(taken[0].offset)
    group.extend(taken[1].offset, ack_ms=1000)
    group.ack(taken[1].offset)
    group.seek("last")
    assert group.read(1, block_ms=5, ack_ms=1000) == []
    assert stream.read(stream.info().last + 1, 1, block_ms=5) == []
    stream.register_reader("outside", 5)
    stream.forget_reader("outside")
    stream.seal()
    stream.compact()
    stream.evict(10)
    stream.offset_at(stream.info().created_ms)
    assert sum(batch.num_rows for batch in stream.scan())
    hw.keep()
    topic = hw.topic("everywhere", 2)
    topic.write("tag", b"value")
    assert topic.group("g").read(1, block_ms=1000)
    assert group.remove()
    assert topic.delete()
    assert stream.delete()
