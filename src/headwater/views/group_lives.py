"""What happened to one message in a group, out of the ranges of its ruler."""

from __future__ import annotations

from headwater.kernel.failures import LastFailure
from headwater.log.inspecting import GroupRuler


def life_in_group(
    ruler: GroupRuler, failure: LastFailure | None, offset: int, now_ms: int
) -> tuple[str, str, int | None]:
    """Return the state of a message, in words, and when it was first delivered, if known."""
    why = f": {failure.cause}" if failure and failure.cause else ""
    first_ms = failure.delivered_ms if failure else None
    for dead in ruler.dead:
        if dead.first <= offset <= dead.last:
            otherwise = ": no error was reported" if failure else ": expired"
            text = f"dead after {dead.attempt} attempts{why or otherwise}"
            return "dead", text, first_ms
    if any(low <= offset <= high for low, high in ruler.gaps):
        return "missed", "missed: it was evicted before the group read it", None
    for one in ruler.pending:
        if one.first <= offset <= one.last:
            due = one.due_ms <= now_ms
            when = "now" if due else f"in {(one.due_ms - now_ms) / 1000:,.1f} s"
            text = f"pending, attempt {one.attempt}, redelivered {when}; which member holds it is "
            text += f"not kept{why and '; last error' + why}"
            return ("due" if due else f"pending-{min(one.attempt, 3)}"), text, first_ms
    if offset >= ruler.next:
        before = offset - ruler.next
        return "new", f"not delivered yet; {before:,} messages are before it", None
    return *_passed(ruler, offset), None


def _passed(ruler: GroupRuler, offset: int) -> tuple[str, str]:
    """Return the state of a message that is before the next one and is in no list."""
    if any(low <= offset <= high for low, high in ruler.jumps):
        text = "passed over by a seek; whether it was delivered before is not kept"
        return "passed", text
    if offset < ruler.start:
        return "before", f"never delivered: the group began at {ruler.start:,}"
    unknown = ruler.not_known
    if unknown is not None and offset < unknown.before:
        return "unknown", unknown.why
    return "done", "done; when is not kept"
