"""The options that the commands on timelines have in common: the farm, and how it is used."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.option_groups import OptionGroup
from headwater.errors import InvalidInput

# The defaults of the farm. Importing it for them would slow down every command; a test compares.
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
MaxSize = Annotated[int, typer.Option(metavar="N", help="A key shows at most N elements.")]
Keep = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="A key keeps N elements, deleted ones included. Default: twice --max-size.",
        show_default=False,
    ),
]
Hash = Annotated[str, typer.Option(help="How keys are spread: murmur3, fnv or fnva.")]
Horizon = Annotated[
    str | None,
    typer.Option(metavar="SCORE", help="Elements below this score are removed and refused."),
]
Timeout = Annotated[
    int, typer.Option("--timeout-ms", help="Milliseconds after which an instance has failed.")
]
Rate = Annotated[int, typer.Option(metavar="N", help="Compare at most N timelines a second.")]
StateFile = Annotated[
    Path | None,
    typer.Option(
        "--state",
        metavar="FILE",
        help="The file that keeps the progress, so that the next run continues there.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class FarmFlags(OptionGroup):
    """The farm, and what all that use it must agree on."""

    instances: Instances
    max_size: MaxSize = MAX_SIZE
    keep: Keep = None
    horizon: Horizon = None
    hash: Hash = "murmur3"
    timeout_ms: Timeout = TIMEOUT_MS

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``Farm.open`` beside the instances."""
        from headwater.timeline.records import read_score

        try:
            horizon = None if self.horizon is None else read_score(self.horizon)
        except InvalidInput as error:
            raise InvalidInput(f"--horizon: {error}") from None
        return {
            "max_size": self.max_size,
            "keep": self.keep,
            "horizon": horizon,
            "hash": self.hash,
            "timeout_ms": self.timeout_ms,
        }


@dataclass(frozen=True)
class WritingFarmFlags(FarmFlags):
    """The farm, for commands that write."""

    quorum: Quorum = QUORUM

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of ``Farm.open`` beside the instances."""
        return {**super().arguments(), "write_quorum": self.quorum}
