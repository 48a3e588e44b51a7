"""The sentences of the README and of the written pages can be read at once."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "docs" / "index.md",
    *(
        page
        for folder in ("tutorial", "how-to", "discussion")
        for page in sorted((ROOT / "docs" / folder).glob("*.md"))
    ),
]
MOST_WORDS = 35

_FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)
_CODE = re.compile(r"`[^`]+`")
_LINK = re.compile(r"!?\[([^]]*)\]\([^)]*\)")
# A heading, a row of a table, a tab and an item of a list begin a text of their own.
_BREAK = re.compile(r"^ *(?:[#|].*|[=!?]{3}.*|(?:[-*]|\d+\.) )", re.MULTILINE)
_SENTENCE_END = re.compile(r"(?<=[.!?:])[\"')*_]*\s+(?=[\"'(*_]*[A-Z0-9])|(?<=:)\s*$")


def sentences(markdown: str) -> Iterator[str]:
    """Return the sentences of a page, without its code blocks, tables and link targets."""
    text = _COMMENT.sub("", _FENCED.sub("\n\n", markdown))
    # Code within a sentence is one word, whatever it contains.
    text = _LINK.sub(r"\1", _CODE.sub("Code", text))
    for paragraph in re.split(r"\n\s*\n", _BREAK.sub("\n\n", text)):
        for sentence in _SENTENCE_END.split(" ".join(paragraph.split())):
            if sentence:
                yield sentence


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_sentence_is_longer_than_a_reader_can_keep_in_mind(page: Path) -> None:
    long = [
        f"{page.relative_to(ROOT)}: {len(sentence.split())} words: {sentence}"
        for sentence in sentences(page.read_text("utf-8"))
        if len(sentence.split()) > MOST_WORDS
    ]
    assert not long, "split these sentences, or make them a list:\n" + "\n".join(long)


def test_a_sentence_ends_where_its_reader_sees_an_end() -> None:
    page = "# Title\nOne `a.b c`. Two [three](four five.md)\nsix?\n\n| a |\n\n- seven\n- eight\n"
    page += "```python\nnine = 9\n```\n"
    assert list(sentences(page)) == ["One Code.", "Two three six?", "seven", "eight"]
