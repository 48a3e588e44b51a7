"""The text format of Prometheus: samples by metric, with the lines that say what a metric is.

Written by hand, because a page of 10,000 objects has 200,000 lines: prometheus-client needs several
seconds for these, and they come from a store and not from counters of this process
(docs/decisions/0028-metrics.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from headwater.metrics.families import FAMILIES

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SPECIAL: Final = frozenset('\\"\n')
_ESCAPES: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


def label_text(**labels: str) -> str:
    """Return labels as they stand behind a name; a name in a store may hold any character."""
    inside = ",".join([f'{name}="{_escaped(value)}"' for name, value in labels.items()])
    return f"{{{inside}}}" if inside else ""


def with_label(labels: str, name: str, value: str) -> str:
    """Return labels with one more behind them."""
    return f'{labels[:-1]},{name}="{_escaped(value)}"}}'


def _escaped(value: str) -> str:
    return value if _SPECIAL.isdisjoint(value) else value.translate(_ESCAPES)


def histogram_lines(
    labels: str, bounds: Iterable[float], counts: Sequence[int], total: float
) -> Iterator[str]:
    """Yield the lines of a histogram, behind its name; counts are of each span alone."""
    inside = labels[1:-1]
    seen = 0
    for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
        seen += count
        yield f'_bucket{{{inside},le="{bound}"}} {seen}'
    yield f"_sum{labels} {total}"
    yield f"_count{labels} {seen}"


class Page:
    """A page of metrics being built; takes a limited number of lines, and counts the others."""

    def __init__(self, most: int | None = None) -> None:
        self._lines: dict[str, list[str]] = {}
        self._left = most
        self.dropped = 0

    def add(self, labels: str, **samples: float | None) -> None:
        """Add samples of several metrics that have the same labels, all of them or none.

        A sample that is None is left out.
        """
        known = {name: value for name, value in samples.items() if value is not None}
        if self._takes(len(known)):
            for name, value in known.items():
                self._lines.setdefault(name, []).append(f"{labels} {value}")

    def _takes(self, count: int) -> bool:
        """Return whether there is room for this many lines, which is taken then."""
        if self._left is None:
            return True
        if count > self._left:
            self._left = 0
            self.dropped += count
            return False
        self._left -= count
        return True

    def add_lines(self, name: str, lines: Iterable[str]) -> None:
        """Add lines of a histogram, which begin behind its name."""
        self._lines.setdefault(name, []).extend(lines)

    def add_histogram(
        self, name: str, labels: str, bounds: Iterable[float], counts: Sequence[int], total: float
    ) -> None:
        """Add a histogram: how many up to each bound, then beyond, and the sum of all."""
        if self._takes(len(counts) + 2):
            self.add_lines(name, histogram_lines(labels, bounds, counts, total))

    def blocks(self) -> Iterator[bytes]:
        """Yield the page metric by metric, in the order of the table."""
        for family in FAMILIES.values():
            lines = self._lines.get(family.name)
            if lines:
                full = family.full_name
                head = f"# HELP {full} {family.help}\n# TYPE {full} {family.kind}\n{full}"
                yield (head + f"\n{full}".join(lines) + "\n").encode()

    def text(self) -> str:
        """Return the page, metrics in the order of the table."""
        return b"".join(self.blocks()).decode()
