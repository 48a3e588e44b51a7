"""For spark-submit: runs ``headwater spark`` with the words that follow this file's name.

spark-submit --master spark://host:7077 $(headwater spark entry) totals rides --db ...

Master and settings are those that spark-submit was given.
"""

from __future__ import annotations

import sys
from pathlib import Path

import typer


def entry() -> None:
    """Print the file to give to spark-submit, which takes the same commands.

    spark-submit --master spark://host:7077 $(headwater spark entry) totals ...
    """
    typer.echo(Path(__file__))


def main() -> None:
    """Run a job as the command line does, with its exit code."""
    # Python puts the folder of a script first on its path, where modules of this package would
    # pass for others of the same name.
    here = Path(__file__).resolve().parent
    sys.path[:] = [place for place in sys.path if Path(place).resolve() != here]
    from headwater.cli.program import narrowed

    words = ["spark", *sys.argv[1:]]
    narrowed(words)(words, prog_name="headwater")


if __name__ == "__main__":
    main()
