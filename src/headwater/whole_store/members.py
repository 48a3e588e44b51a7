"""The name of a client among the members of groups and queues."""

from __future__ import annotations

import os
import socket


def member_name(token: str) -> str:
    """Return the name of this client among the members of a group: where it runs, and which."""
    host = "".join(c for c in socket.gethostname() if c.isalnum() or c in ".-")[:60] or "host"
    return f"{host}-{os.getpid()}-{token}"
