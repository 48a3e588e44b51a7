"""What a server of HTTP is made of: a handler that admits and answers requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from headwater.serve.http.messages import Admitted, Refused, Reply, Request, StreamedReply


class Handler(Protocol):
    """What answers the requests of connections."""

    @property
    def needs_token(self) -> bool:
        """Whether a client is anonymous until it shows a token."""

    @property
    def headers(self) -> frozenset[bytes]:
        """The names of the headers that it looks at, in lower case."""

    def admit(self, method: str, path: str, authorization: str) -> Admitted:
        """Decide on a request by its head; raises Refused."""

    def handle(
        self, request: Request, answer: Callable[[Reply | StreamedReply], None]
    ) -> Callable[[], Any] | None:
        """Answer a request that was admitted, at once or later: by one call of ``answer``.

        May return what ends the work when its client is gone; it is answered all the same.
        """

    def refuse(self, refused: Refused) -> Reply:
        """Return the reply to what is refused, which may not even be a request."""

    def count(self, reply: Reply | StreamedReply) -> None:
        """Count a request that is answered, whether or not its client is still there."""
