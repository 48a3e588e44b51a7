"""Rows of a batch as traces see them: by their headers, which may hold the context of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from headwater.kernel.headers import Headers
from headwater.kernel.instrument import current

# As many links a span has, by the default of the SDK of OpenTelemetry.
_LINKED: Final = 128


class TracedRow(NamedTuple):
    """A staged row, of which an instrument sees the headers alone."""

    headers: Headers


def traced_rows(headers: Sequence[bytes] | None) -> list[TracedRow]:
    """Return the rows whose traces a batch is linked to; none while nobody makes traces."""
    if headers is None or current() is None:
        return []
    return [TracedRow(Headers.stored(one)) for one in headers[:_LINKED]]
