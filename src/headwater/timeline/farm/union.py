"""What several clusters say of a key, united by the merge law; without I/O.

Pages show inserted members only, and end somewhere. An element is *agreed* when every cluster shows
it with one score; else it is *disputed*: a cluster may lack it, or know that it was deleted, which
its page does not show. Below the end of any page that is not whole nothing is certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headwater.timeline.cluster.calls import Known, TimelinePage, Window, columns_of
from headwater.timeline.law import Place, State, newest
from headwater.timeline.records import Columns, Row


class Union(NamedTuple):
    """Agreed elements, newest first, disputed members with their highest score, and the bound.

    Both are complete down to ``bound``, itself included; without a bound they are all there is.
    """

    agreed: Columns
    disputed: dict[bytes, float]
    bound: Place | None


def unite(pages: Sequence[TimelinePage]) -> Union:
    """Compare the pages that clusters gave of one window."""
    first = pages[0]
    ends = [(float(page.raw[-1]), page.raw[-2]) for page in pages if not page.whole]
    bound = max(ends, default=None)
    if all(page == first for page in pages[1:]):
        return Union(columns_of(first.raw), {}, bound)
    scores = [dict(page.rows) for page in pages]
    highest: dict[bytes, float] = {}
    for shown in scores:
        for member, score in shown.items():
            highest[member] = max(score, highest.get(member, score))
    agreed: list[Row] = []
    disputed: dict[bytes, float] = {}
    for member, score in highest.items():
        if bound is not None and (score, member) < bound:
            continue
        if all(shown.get(member) == score for shown in scores):
            agreed.append((member, score))
        else:
            disputed[member] = score
    return Union(newest_first(agreed), disputed, bound)


def newest_first(rows: list[Row]) -> Columns:
    """Sort rows by score, equal ones by member, both descending."""
    rows = sorted(rows, key=lambda row: (row[1], row[0]), reverse=True)
    return [member for member, _ in rows], [score for _, score in rows]


def verdict(members: Sequence[bytes], known: Sequence[Known]) -> list[State | None]:
    """Say what is true of members, of which each cluster that could be asked told what it knows.

    None is said of one that is not in the key: nobody knows it, or it stands below the floor of a
    full key, where there are enough newer elements to push it out wherever it still is.
    """
    floor = max((replica.floor for replica in known if replica.floor is not None), default=None)
    truths: list[State | None] = []
    for place, member in enumerate(members):
        truth = newest(replica.states[place] for replica in known)
        lost = truth is not None and floor is not None and (truth.score, member) < floor
        truths.append(None if lost else truth)
    return truths


def within(row: Row, window: Window, bound: Place | None) -> bool:
    """Say whether an element lies in a window and is certain to be placed rightly."""
    place = (row[1], row[0])
    return (
        (bound is None or place >= bound)
        and (window.start is None or place < tuple(window.start))
        and (window.stop is None or place > tuple(window.stop))
    )
