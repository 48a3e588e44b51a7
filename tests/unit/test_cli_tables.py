"""Tables of commands in a terminal of any width: no number is cut."""

from __future__ import annotations

import re

import pytest

from headwater.cli import output

HEADINGS = ["group", "next", "ack_offset", "pending", "lag", "members", "state"]
ROW = ["send_confirmation_mail", 123_457, 1, 123_456, 176_544, 12, "waits for the first message"]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int) -> str:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    output.show_table(HEADINGS, [ROW, ["totals", *ROW[1:]]])
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out)


@pytest.mark.parametrize("width", [200, 120, 80, 60, 50, 30])
def test_every_number_is_whole(shown: str, width: int) -> None:
    assert all(len(line.rstrip()) <= width for line in shown.splitlines())
    for cell in ROW[1:-1]:
        assert re.search(rf"(?<!\S){cell}(?!\S)", shown)


@pytest.mark.parametrize("width", [120])
def test_a_table_with_room_for_it_has_a_line_for_each_row(shown: str) -> None:
    heading, _, *rows = shown.splitlines()
    assert heading.split() == HEADINGS
    assert [row.split()[:2] for row in rows] == [
        ["send_confirmation_mail", "123457"],
        ["totals", "123457"],
    ]


@pytest.mark.parametrize("width", [60])
def test_without_room_each_cell_has_a_line_with_its_heading(shown: str) -> None:
    first, second = (
        [line.split(maxsplit=1) for line in part.splitlines()] for part in shown.split("\n\n")
    )
    assert [(name, cell.rstrip()) for name, cell in first] == [
        (heading, str(cell)) for heading, cell in zip(HEADINGS, ROW, strict=True)
    ]
    assert [word.rstrip() for word in second[0]] == ["group", "totals"]
