"""The reference of the RESP door says of every command, error and limit what is true."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from headwater.serve.resp import replies
from headwater.serve.resp.limits import RespLimits
from headwater.serve.resp.table import COMMANDS
from tests.support.pages import ROOT
from tests.support.resp_reference import table

PAGE = (ROOT / "docs" / "reference" / "resp.md").read_text("utf-8")


@pytest.mark.parametrize("group", sorted({command.group for command in COMMANDS.values()}))
def test_the_reference_has_every_command(group: str) -> None:
    assert table(group) in PAGE


def test_the_reference_has_every_code_of_an_error() -> None:
    stated = re.findall(r"^\| `([A-Z-]+)` \|", PAGE.split("## Errors")[1], flags=re.MULTILINE)
    assert tuple(stated) == replies.ERROR_CODES
    described = re.findall(r"^ *([A-Z-]+)  +", replies.__doc__ or "", flags=re.MULTILINE)
    assert tuple(described) == replies.ERROR_CODES


def test_the_reference_has_every_limit() -> None:
    stated = dict(re.findall(r"^\| `([a-z_]+)` \| ([\d,]+)", PAGE, flags=re.MULTILINE))
    limits = RespLimits()
    assert stated == {one.name: f"{getattr(limits, one.name):,}" for one in fields(limits)}
