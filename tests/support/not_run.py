"""What a test run leaves out, and its last section: what was not run, by reason, file and leg.

A leg is the kind of store, client or database that a parametrised test runs on, as ``redis-sync``.
"""

from __future__ import annotations

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

_NODE = re.compile(r"(?P<file>[^:]+)(?:::[^\[]*(?:\[(?P<values>.*)\])?)?$")
# Of the parameters of a test, those that name a leg; others are its values.
_LEGS = {
    *("embedded", "plain", "valkey", "redis", "cluster"),
    *("sync", "async"),
    *("sqlite", "postgres"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave long proofs out, unless HEADWATER_LONG asks for them."""
    for item in items:
        if item.get_closest_marker("long") and "HEADWATER_LONG" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="a long proof: make test-long"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """End the run with what was not run; nothing is said when all was run."""
    if lines := list(not_run(terminalreporter.stats.get("skipped", []))):
        terminalreporter.section("not run")
        for line in lines:
            terminalreporter.line(line)


def not_run(skipped: Iterable[Any]) -> Iterator[str]:
    """Return the lines of the section, made of the reports of all skipped tests.

    The reason that keeps most tests from running comes first; each reason is followed by every
    file it concerns, with the number of tests and their legs.
    """
    found: defaultdict[str, defaultdict[str, Counter[str]]]
    found = defaultdict(lambda: defaultdict(Counter))
    for report in skipped:
        node = _NODE.match(report.nodeid)
        assert node is not None, report.nodeid
        leg = "-".join(word for word in (node["values"] or "").split("-") if word in _LEGS)
        found[_reason(report)][node["file"]][leg] += 1
    for reason, files in sorted(found.items(), key=lambda item: (-_tests(item[1]), item[0])):
        yield f"{_tests(files):5} not run: {reason}"
        for file, legs in sorted(files.items()):
            yield f"{legs.total():10} {file}{_legs(legs)}"


def _reason(report: Any) -> str:
    """Return why a test was skipped; pytest puts place and reason of a skip into ``longrepr``."""
    _, _, reason = report.longrepr
    return str(reason).removeprefix("Skipped: ")


def _tests(files: dict[str, Counter[str]]) -> int:
    return sum(legs.total() for legs in files.values())


def _legs(legs: Counter[str]) -> str:
    names = sorted(legs.keys() - {""})
    return f" [{', '.join(names)}]" if names else ""
