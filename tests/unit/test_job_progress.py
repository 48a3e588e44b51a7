"""Jobs tell how far they are in a manner that fits who listens, and end with a summary."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headwater.spark.jobs.progress import JobReport, Manner, Summary, counted, deed


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved(Summary):
    name: str
    rows_moved: int

    def sentence(self) -> str:
        return f"{deed(self.dry_run, 'move', 'moved')} {counted(self.rows_moved, 'row')}"


class Clock:
    """A clock that goes on when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_plain_line_comes_now_and_then_and_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    with JobReport(Manner.PLAIN, clock=clock).step("moving", 4000) as step:
        for _ in range(8):
            clock.now += 2
            step.advance(500)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "moving: 1,500 of 4,000 rows, 37 %",
        "moving: 3,000 of 4,000 rows, 75 %",
        "moving: 4,000 rows, done in 16.0 s",
    ]


def test_a_plain_line_is_not_said_twice(capsys: pytest.CaptureFixture[str]) -> None:
    clock = Clock()
    with JobReport(Manner.PLAIN, clock=clock).step("adding up") as step:
        for more in (0, 0, 0, 7, 0):
            clock.now += 5
            step.advance(more)
    assert capsys.readouterr().err.splitlines() == [
        "adding up: 0 rows",
        "adding up: 7 rows",
        "adding up: 7 rows, done in 25.0 s",
    ]


def test_what_is_not_known_yet_is_counted_without_a_share(
    capsys: pytest.CaptureFixture[str],
) -> None:
    clock = Clock()
    report = JobReport(Manner.PLAIN, clock=clock)
    with report.step("reading", unit="file") as step:
        clock.now = 9
        step.advance(1)
        step.expect(2)
        clock.now = 18
        step.advance(1)
    report.note("a gap was found")
    assert capsys.readouterr().err.splitlines() == [
        "reading: 1 file",
        "reading: 2 of 2 files, 100 %",
        "reading: 2 files, done in 18.0 s",
        "a gap was found",
    ]


@pytest.mark.parametrize("report", [JobReport(), JobReport.of_command(quiet=True)])
def test_nobody_is_told_who_does_not_listen(
    report: JobReport, capsys: pytest.CaptureFixture[str]
) -> None:
    with report.step("moving", 2) as step:
        step.advance(2)
    report.note("nothing")
    assert capsys.readouterr() == ("", "")


def test_a_line_that_moves_takes_any_words(capsys: pytest.CaptureFixture[str]) -> None:
    with JobReport(Manner.LINE).step("moving [bold]", 2) as step:
        step.advance(2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "moving [bold]" in err
    assert "2 rows" in err


def test_a_step_that_fails_does_not_say_that_it_is_done(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(KeyError), JobReport(Manner.PLAIN).step("moving"):
        raise KeyError
    assert "done" not in capsys.readouterr().err


def test_a_summary_tells_what_was_done_or_would_be() -> None:
    done = Moved(name="rides", rows_moved=12345, seconds=2.04)
    assert done.headline() == "moved 12,345 rows in 2.0 s"
    assert done.facts() == [("name", "rides"), ("rows moved", "12,345")]
    many = Moved(name={"rides": 5000, "trips": 2}, rows_moved=1)  # type: ignore[arg-type]
    assert many.facts()[0] == ("name", "rides 5,000, trips 2")
    planned = Moved(name="rides", rows_moved=1, dry_run=True)
    assert planned.headline() == "dry run: would move 1 row; nothing was changed"
