"""Several instruments in one process: servers and programs beside each other."""

from __future__ import annotations

from headwater.kernel.instrument import also_installed, current, installed, observe
from tests.support.instruments import Recorder


def test_instruments_beside_each_other_begin_and_end_in_any_order() -> None:
    first, second, own = Recorder(), Recorder(), Recorder()
    one, other = also_installed(first), also_installed(second)
    one.__enter__()
    other.__enter__()
    with installed(own):
        one.__exit__(None, None, None)
        observation = observe("queue.push", "jobs")
        assert observation is not None
        observation.end()
    other.__exit__(None, None, None)
    assert [len(found.events) for found in (first, second, own)] == [0, 1, 1]
    assert current() is None
