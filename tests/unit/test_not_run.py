"""What a test run left out is named at its end, with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
TESTS = """
    import pytest

    @pytest.fixture(params=["plain-async", "redis-sync"])
    def client(request):
        if request.param == "redis-sync":
            pytest.skip("no Redis here")

    @pytest.mark.parametrize("n", [1, 2])
    def test_a_promise(client, n):
        pass

    def test_another(client):
        pass

    @pytest.mark.long
    def test_at_length():
        pass
"""


@pytest.fixture
def tree(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Two files of tests under the hooks of this project's tests."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("HEADWATER_LONG", raising=False)
    pytester.makeini("[pytest]\nmarkers =\n  long\n  cluster\n")
    pytester.makeconftest(
        "from tests.support.not_run import pytest_collection_modifyitems, pytest_terminal_summary"
    )
    pytester.makepyfile(
        test_one=TESTS,
        test_two='import pytest\npytest.skip("no Java here", allow_module_level=True)',
    )
    return pytester


@pytest.mark.parametrize("processes", [0, 2])
def test_what_was_not_run_is_named_by_reason_file_and_leg(
    tree: pytest.Pytester, processes: int
) -> None:
    run = tree.runpytest_subprocess("-p", "xdist", "-n", str(processes))
    run.assert_outcomes(passed=3, skipped=5)
    lines = [line for line in run.outlines if line]
    heading = next(place for place, line in enumerate(lines) if "= not run =" in line)
    assert lines[heading + 1 : -1] == [
        "    3 not run: no Redis here",
        "         3 test_one.py [redis-sync]",
        "    1 not run: a long proof: make test-long",
        "         1 test_one.py",
        "    1 not run: no Java here",
        "         1 test_two.py",
    ]


def test_nothing_is_said_when_all_was_run(tree: pytest.Pytester) -> None:
    run = tree.runpytest_subprocess("-k", "plain", "--ignore", "test_two.py")
    run.assert_outcomes(passed=3, deselected=4)
    run.stdout.no_fnmatch_line("*not run*")
