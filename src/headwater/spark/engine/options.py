"""The options of a data source: names in any case, values checked when they are read.

Every error is one line that names the option, its value and what it may be; a value is only shown
where it cannot be a secret.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from headwater.errors import InvalidInput
from headwater.kernel.inputs import MAX_EXACT
from headwater.spark.engine.failures import one_line

# Spark hands these over itself, to any source or sink: of queries, and of tables in its catalog.
_SPARKS_OWN = frozenset(
    name.lower()
    for name in (
        "checkpointLocation",
        "clusteringColumns",
        "collation",
        "comment",
        "external",
        "is_managed_location",
        "location",
        "outputMode",
        "owner",
        "path",
        "provider",
        "queryName",
        "serialization.format",
        "transient_lastDdlTime",
    )
)
_UNITS_MS = {
    "": 1,
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")


class SourceOptions:
    """The options that a user gave by ``option(...)``; names that are not ``known`` are refused.

    Names of Spark's own are ignored. ``path``, the argument of ``load``, ``save`` and ``start``,
    stands for the first of ``paths``, if any, unless one of them is given.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: Iterable[str],
        paths: Sequence[str] = (),
    ) -> None:
        self._spelling = {name.lower(): name for name in known}
        self._given = {name.lower(): value for name, value in given.items()}
        for name in given:
            if name.lower() not in self._spelling and not _is_sparks_own(name.lower()):
                raise self._unknown(name)
        path = self._given.get("path")
        if path and paths and self._given.keys().isdisjoint(name.lower() for name in paths):
            self._given[paths[0].lower()] = path

    def _unknown(self, name: str) -> InvalidInput:
        # The command line and headwater.toml call it the store.
        alike = "url" if name.lower() == "store" else name.lower()
        near = difflib.get_close_matches(alike, self._spelling, n=1)
        hint = f"; did you mean {self._spelling[near[0]]!r}?" if near else ""
        known = ", ".join(sorted(self._spelling.values(), key=str.lower))
        return InvalidInput(f"unknown option {name!r}{hint} (known are {known})")

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._given

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return the text of an option; an empty one counts as not given."""
        return self._given.get(name.lower()) or default

    def required(self, name: str) -> str:
        """Return the text of an option that must be given. Raises InvalidInput."""
        value = self.text(name)
        if value is None:
            raise InvalidInput(f"option {name!r} is missing; add .option({name!r}, ...)")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return an option that is true or false. Raises InvalidInput for anything else."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() not in _TRUE + _FALSE:
            raise InvalidInput(f"option {name!r} must be true or false, not {value!r}")
        return value.lower() in _TRUE

    def number(self, name: str, least: int = 1, most: int = MAX_EXACT) -> int | None:
        """Return a whole number within bounds; None when it is not given."""
        value = self.text(name)
        if value is None:
            return None
        sign, digits = (-1, value[1:]) if value.startswith("-") else (1, value)
        number = sign * int(digits) if digits.isascii() and digits.isdecimal() else None
        if number is None or not least <= number <= most:
            raise InvalidInput(
                f"option {name!r} must be a whole number from {least} to {most}, not {value!r}"
            )
        return number

    def duration_ms(self, name: str) -> int | None:
        """Return a time span as Spark writes it, such as 15m, in ms; None when it is not given."""
        value = self.text(name)
        if value is None:
            return None
        found = re.fullmatch(r"(\d+)\s*([a-z]*)", value.strip().lower(), re.ASCII)
        if found is None or found[2] not in _UNITS_MS:
            units = ", ".join(unit for unit in _UNITS_MS if unit)
            raise InvalidInput(
                f"option {name!r} must be a number with one of the units {units}, not {value!r}"
            )
        return int(found[1]) * _UNITS_MS[found[2]]

    def choice(self, name: str, among: Iterable[str], default: str) -> str:
        """Return an option that is one of several words. Raises InvalidInput for others."""
        value = (self.text(name) or default).lower()
        words = list(among)
        if value not in words:
            raise InvalidInput(f"option {name!r} must be one of {', '.join(words)}, not {value!r}")
        return value

    def words(self, name: str) -> list[str]:
        """Return a list that is written with commas; empty when it is not given."""
        return [word for part in (self.text(name) or "").split(",") if (word := part.strip())]

    def parsed(self, name: str) -> Any:
        """Return what an option says in JSON; None when it is not given."""
        value = self.text(name)
        if value is None:
            return None
        try:
            return json.loads(value)
        except ValueError as error:
            raise InvalidInput(
                f"option {name!r} is not JSON ({error}); write it with json.dumps(...)"
            ) from None


def _is_sparks_own(name: str) -> bool:
    # Options and properties of tables are there twice, once with such a prefix.
    return name in _SPARKS_OWN or name.startswith(("option.", "spark.", "view."))


# ── Table options ─────────────────────────────────────────────────────────────────────────────────
# Tables of Spark's catalog, whose options Spark does not hand to a Python source.
#
# ``CREATE TABLE ... USING headwater OPTIONS (...)`` asks the source for its columns, with all
# options, and keeps both; a later read gets no options. Our rule finds them in the catalog
# (``jvm/TableOptions.java``) and plans the read with them. The plan without them, which Spark
# makes first, must not fail, for it is not used. Where it is used, in a session without our rule,
# the error says why.


_LOST = (
    "Spark has not handed over the options of this table; read it in a session of "
    "headwater.spark.session(), and write to it or stream from it by .format(...) and .option(...)"
)


class LostReader(DataSourceReader):
    """The plan of a read without options."""

    @one_line()
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002  Spark's
        """Raise InvalidInput."""
        raise InvalidInput(_LOST)
