"""Views: what is shown of an object, as typed records, one module for each kind of object.

What a command prints with ``--json``, what HTTP answers and what the console shows is the same
record, made here of the library's own types:

    views.streams.StreamView.of(stream.info()).to_json()

Each view has a schema; ``schemas`` returns all of them as OpenAPI components. The name of a field
ends with its unit (``_ms``, ``_per_s``, ``_bytes``; a field ``bytes`` counts bytes). Bytes are
text, or base64 with a mark beside it: see ``headwater/kernel/inputs.py``.

A module of views is imported when it is first used: the command line must not wait for SQL and
Arrow before it prints its help.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.views import (
        icks,
        jobs,
        outboxes,
        overview,
        queries,
        queues,
        stores,
        streams,
        timed,
        timelines,
    )
    from headwater.views.record import View

__all__ = [
    "icks",
    "jobs",
    "outboxes",
    "overview",
    "queries",
    "queues",
    "stores",
    "streams",
    "timed",
    "timelines",
]


if not TYPE_CHECKING:  # a checker would take it for a promise of any name

    def __getattr__(name: str) -> Any:
        if name not in __all__:
            raise AttributeError(f"module 'headwater.views' has no attribute {name!r}")
        return import_module(f"headwater.views.{name}")


def all_views() -> dict[str, type[View]]:
    """Return every view by its name; those of jobs only where Spark is installed."""
    from headwater.views.record import Mirror, View

    return {
        name: found
        for module in __all__
        if module != "jobs" or find_spec("pyspark")
        for name, found in vars(import_module(f"headwater.views.{module}")).items()
        if isinstance(found, type) and issubclass(found, View) and found not in (View, Mirror)
    }


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of every view by its name, as OpenAPI 3.1 has it in components."""
    import msgspec

    template = "#/components/schemas/{name}"
    _, found = msgspec.json.schema_components(all_views().values(), ref_template=template)
    return found
