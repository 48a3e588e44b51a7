"""Views of the tokens of a server; the token itself is shown once, when it is made."""

from __future__ import annotations

from headwater.views.record import View


class TokenView(View, frozen=True, kw_only=True):
    """A token of a file: whose it is, and the patterns of names that each scope is given on."""

    holder: str
    read: list[str]
    write: list[str]
    admin: list[str]


class TokenCreatedView(View, frozen=True, kw_only=True):
    """A token that was made. Its file has only the digest: nobody can show it again."""

    holder: str
    token: str


class TokenRemovedView(View, frozen=True, kw_only=True):
    """A token that was removed; servers refuse it within a second."""

    holder: str
    removed: bool = True
