"""A name in the path of a request arrives as it was, whatever it is."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headwater.serve.http.messages import Refused, name_of_part, path_part

# What the standard of URLs calls a single-dot or a double-dot path segment.
STEP = re.compile(r"(\.|%2e){1,2}", re.IGNORECASE)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1) | st.text("{.}", min_size=1)


@given(names)
@example(".")
@example("..")
@example("{..}")
@example("%2E%2E")
def test_a_name_arrives_as_it_was_and_is_no_step_of_a_path(name: str) -> None:
    part = path_part(name)
    assert name_of_part(part) == name
    assert not STEP.fullmatch(part)
    assert re.fullmatch(r"[\w.~%-]+", part, re.ASCII)


@pytest.mark.parametrize("part", ["..", "%2E%2e", "%7B..%7D", "{..}"])
def test_every_spelling_of_two_dots_is_understood(part: str) -> None:
    assert name_of_part(part) == ".."


@pytest.mark.parametrize("part", ["%7Ba%7D", "{}", "%7B", "{...}", "}..{"])
def test_other_braces_belong_to_the_name(part: str) -> None:
    assert name_of_part(part) == part.replace("%7B", "{").replace("%7D", "}")


def test_a_name_that_is_no_text_is_refused() -> None:
    with pytest.raises(Refused, match="not UTF-8"):
        name_of_part("%FF")
