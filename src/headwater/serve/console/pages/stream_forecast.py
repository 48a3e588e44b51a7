"""What retention would do to a stream now, in the words of its header."""

from __future__ import annotations

from typing import Final

from headwater.metrics.retention_forecasts import RetentionForecast
from headwater.serve.console.render import number

# So many groups that would miss messages are named.
_NAMED: Final = 3


def forecast_words(seen: RetentionForecast) -> str:
    """Say what would be evicted now, what waits for whom, and who would miss how much."""
    if not seen.due:
        return "nothing to evict now"
    at_least = "at least " if seen.more else ""
    kept = seen.due - seen.evicted
    waiting = (
        f"{at_least}{number(kept)} wait for {seen.held_by}, which needs {number(seen.held_next)}"
    )
    if not seen.evicted:
        return f"would evict nothing now; {waiting}"
    # What is held up is all that is not counted.
    first = "" if kept else at_least
    said = f"would evict {first}{number(seen.evicted)} now, passes {_passed(seen)}"
    return f"{said}; {waiting}" if kept else said


def _passed(seen: RetentionForecast) -> str:
    if not seen.passed:
        return "nobody"
    named = [f"{one.group} by {number(one.missed)}" for one in seen.passed[:_NAMED]]
    more = len(seen.passed) - len(named)
    return ", ".join(named) + (f" and {number(more)} more groups" if more else "")
