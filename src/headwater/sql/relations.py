"""Tables and queries by name. Names are always quoted, so that nothing in them is read as SQL."""

from __future__ import annotations

import re
from typing import NamedTuple

from headwater.errors import InvalidInput

_PART = re.compile(r'"((?:[^"]|"")+)"|([^."]+)')


def quoted(name: str) -> str:
    """Return a name in quotes, whatever it holds."""
    return '"' + name.replace('"', '""') + '"'


class Relation(NamedTuple):
    """What is read or written: a table, by its name or schema and name, or a query."""

    parts: tuple[str, ...]
    query: str | None = None

    @classmethod
    def of(cls, table: str | None, query: str | None = None) -> Relation:
        """Understand what a user named; names are taken as they are written.

        Raises InvalidInput unless it is one of both.
        """
        if (table is None) == (query is None):
            raise InvalidInput("name what to read by one of the options 'table' and 'query'")
        if query is not None:
            return cls((), query.strip().rstrip(";"))
        assert table is not None
        parts, at = [], 0
        while match := _PART.match(table, at):
            parts.append(match[1].replace('""', '"') if match[1] else match[2])
            at = match.end() + 1
            if at > len(table):
                break
            if table[at - 1] != ".":
                parts.clear()
                break
        if at <= len(table) or not 1 <= len(parts) <= 2:
            raise InvalidInput(
                f"option 'table' must be a name or schema.name, not {table!r}; a name that holds "
                'dots is written in double quotes: "a.b"'
            )
        return cls(tuple(parts))

    @property
    def sql(self) -> str:
        """What stands after FROM."""
        if self.query is not None:
            return f"(\n{self.query}\n) AS q"
        return ".".join(quoted(part) for part in self.parts)

    def __str__(self) -> str:
        return "the query" if self.query is not None else f"table {'.'.join(self.parts)}"
