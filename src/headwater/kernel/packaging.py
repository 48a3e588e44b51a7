"""Which release this is, and which of its names are imported with their first use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from headwater.errors import ExtraMissing

# ── Release ───────────────────────────────────────────────────────────────────────────────────────
# Which release this is: the version of the package, which every release raises.
#
# In the tree it is that of the release to come.


__version__ = "0.1.0"


# ── Lazy names ────────────────────────────────────────────────────────────────────────────────────
# Names of a package that are imported with their first use, and the extra that brings them.
#
# A package states where its names are defined and passes its ``__getattr__`` to ``names_of``:
# importing the package costs nothing until a name is used, and a library that only some users need
# can be an extra of the distribution: without it, ExtraMissing is raised, which names the extra.


# The modules that an extra of the distribution brings.
_EXTRAS = {
    "sql": ("sqlalchemy", "psycopg", "greenlet"),
    "serve": ("httptools", "jinja2", "markupsafe"),
    "otel": ("opentelemetry",),
    "tier": ("deltalake", "arro3"),
}


@contextmanager
def extra_needed(extra: str) -> Iterator[None]:
    """Raise ExtraMissing when an import in the block fails for want of what the extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRAS[extra]:
            raise
        raise ExtraMissing(extra, missing) from None


def names_of(
    package: str, homes: Mapping[str, Sequence[str]], extra: str | None = None
) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose names live in these modules."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if extra is None:
            home = import_module(home_of[name])
        else:
            with extra_needed(extra):
                home = import_module(home_of[name])
        found = home if home.__name__.rpartition(".")[2] == name else getattr(home, name)
        vars(sys.modules[package])[name] = found
        return found

    return get
