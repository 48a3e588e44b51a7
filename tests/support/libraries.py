"""Function libraries of other releases, as far as they say who they are."""

from __future__ import annotations

from headwater.store.library import VERSION, library


def library_of(release: str, version: int = VERSION) -> str:
    """Return our library as another release would have it, with the contract of that version."""
    ours = library()
    theirs = f"{version}:{release}:0123456789abcdef:1"
    source = ours.source.replace(ours.identity, theirs)
    source = source.replace(f"headwater_{VERSION}\n", f"headwater_{version}\n", 1)
    return source.replace(f"'hw{VERSION}_", f"'hw{version}_")
