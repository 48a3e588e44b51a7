"""What the commands on timelines take and print in common."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from headwater.timeline.records import Member

# As the farm has them: to ask it would make every command wait for what only some need. A test
# compares them.
QUORUM = "51%"
MAX_SIZE = 10_000
TIMEOUT_MS = 3000

Instances = Annotated[
    str,
    typer.Option(
        "--instances",
        envvar="HEADWATER_INSTANCES",
        metavar="FARM",
        help='The farm: instances separated by ",", clusters by ";", as "a:1,b:1;c:1,d:1".',
        show_default=False,
    ),
]
Quorum = Annotated[
    str, typer.Option(help="How many clusters must take a write, or a percentage of them.")
]
MaxSize = Annotated[int, typer.Option(help="Elements that a key keeps, deleted ones counted.")]
Hash = Annotated[str, typer.Option(help="How keys are spread: murmur3, fnv or fnva.")]
Horizon = Annotated[
    float | None, typer.Option(help="Score below which all is forgotten and nothing taken.")
]
Timeout = Annotated[
    int, typer.Option("--timeout-ms", help="Milliseconds after which an instance has failed.")
]


def text_json(name: str, text: Member) -> dict[str, Any]:
    """Give a key or member as text, or, when it is not UTF-8, in base 64 with a mark."""
    if isinstance(text, bytes):
        try:
            return {name: text.decode()}
        except UnicodeDecodeError:
            return {name: base64.b64encode(text).decode(), f"{name}_encoding": "base64"}
    return {name: text}
