"""Servers: tokens, listening and HTTP, which they share; and what each one serves.

    from headwater.serve import Grant, Scope, asgi_app

    api = asgi_app(tokens="tokens.json")

``headwater serve`` runs a server of its own; ``asgi_app`` is the same API in a server of yours.
"""

from typing import TYPE_CHECKING

from headwater.kernel.packaging import names_of as _names_of

if TYPE_CHECKING:
    from headwater.serve.asgi import AsgiApp, asgi_app
    from headwater.serve.tokens import Grant
from headwater.kernel.declaring import Scope

__all__ = ["AsgiApp", "Grant", "Scope", "asgi_app"]

_HOMES = {
    "headwater.serve.asgi": ("AsgiApp", "asgi_app"),
    "headwater.serve.tokens": ("Grant", "Scope"),
}

if not TYPE_CHECKING:  # a checker would take it for a promise of any name
    __getattr__ = _names_of("headwater.serve", _HOMES)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
