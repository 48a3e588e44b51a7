"""Faults that are injected while something is at work: one that is not injected fails the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    """Do some work in a thread during a block, and to its end; raises what fails in it."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(work)
        yield
        done.result()
