"""Predicates of any kind over the rows of a stream, and what a DataFrame gives for many of them.

Needs nothing but PySpark, so that programs in other environments can use it.
"""

from __future__ import annotations

import random

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812  as everybody who uses Spark calls it

AT_ONCE = 20
# So many times AT_ONCE predicates are tried in the long run.
LONG_SEEDS = 50


def answers(ours: DataFrame, same: DataFrame, rows: int, stream: str, seed: int) -> list[object]:
    """Return what two DataFrames of the same rows give for some predicates and columns."""
    chance = random.Random(f"{seed}")
    predicates = [_predicate(chance, rows, stream) for _ in range(AT_ONCE)]
    columns = chance.sample(["offset", "tag", "partition", "time", "value"], chance.randint(1, 5))
    return [_branches(frame, predicates, columns) for frame in (ours, same)]


def _branches(frame: DataFrame, predicates: list[str], columns: list[str]) -> list[tuple[int, ...]]:
    """Return the branch, the count and the sum of the hashes of the rows of each branch."""
    branches = [
        frame.where(one).select(F.lit(place).alias("place"), F.xxhash64(*columns).alias("row"))
        for place, one in enumerate(predicates)
    ]
    union = branches[0]
    for branch in branches[1:]:
        union = union.union(branch)
    found = union.groupBy("place").agg(F.count("*"), F.expr("bit_xor(row)"))
    return sorted(tuple(row) for row in found.collect())


def _predicate(chance: random.Random, rows: int, stream: str, depth: int = 0) -> str:
    if depth < 2 and chance.random() < 0.5:
        parts = [_predicate(chance, rows, stream, depth + 1) for _ in range(2)]
        return f"({parts[0]}) {chance.choice(['AND', 'AND', 'OR'])} ({parts[1]})"
    sign = chance.choice(["=", "<", "<=", ">", ">=", "<>", "<=>"])
    offset = chance.choice([0, 1, 7, chance.randint(1, rows), rows, rows + 1])
    found = chance.choice(
        [
            f"offset {sign} {offset}",
            f"offset IN ({offset}, {offset + 3}, {chance.randint(1, rows)})",
            f"offset BETWEEN {offset} AND {offset + chance.randint(0, 500)}",
            f"offset % 7 = {chance.randint(0, 6)}",
            f"tag {sign} 'tag-{chance.randint(0, 8)}'",
            f"tag LIKE '{chance.choice(['tag-1%', '%-3', '%a%', 'tag'])}'",
            f"partition {sign} {chance.randint(-1, 1)}",
            f"stream {sign} '{stream}'",
            f"time {sign} TIMESTAMP '20{chance.choice([10, 24, 99])}-01-01 00:00:00'",
            "time > current_timestamp() - INTERVAL 1 HOUR",
            f"value {sign} encode('value-{offset}', 'utf-8')",
            "value IS NOT NULL",
        ]
    )
    return f"NOT ({found})" if chance.random() < 0.2 else found
