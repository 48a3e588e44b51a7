"""The next release that tests/fault/test_upgrades.py needs can be made of this tree."""

from __future__ import annotations

from pathlib import Path

from tests.support.releases import copy_tree, make_next


def test_what_the_made_up_next_release_changes_is_there(tmp_path: Path) -> None:
    """A change of the tree may move it: then adapt tests/support/releases.py."""
    tree = tmp_path / "tree"
    copy_tree(tree)
    make_next(tree)
