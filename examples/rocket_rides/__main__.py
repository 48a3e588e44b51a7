"""python -m examples.rocket_rides: run it, with faults; exit 0 only if every total agreed."""

from __future__ import annotations

import secrets
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
import typer

import headwater
from examples.rocket_rides.audit import Audit
from examples.rocket_rides.demo import Demo
from examples.rocket_rides.faults import Tally
from examples.rocket_rides.killer import Killer
from examples.rocket_rides.model import STREAM, create_tables, open_database, refuse_strangers
from examples.rocket_rides.processes import Place
from examples.rocket_rides.simulator import Simulator
from examples.rocket_rides.spark import JOB, Spark, repair
from examples.rocket_rides.supervisor import Supervisor
from examples.rocket_rides.view import View
from headwater.errors import HeadwaterError
from headwater.store import embedded

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


class OnOff(StrEnum):
    """Whether anything goes wrong on purpose."""

    ON = "on"
    OFF = "off"


@app.command()
def main(
    rides: Annotated[int, typer.Option(min=1, max=1_000_000, help="How many at most.")] = 1000,
    seconds: Annotated[
        float,
        typer.Option(min=1, max=86_400, help="For how long at most; rides are spread over it."),
    ] = 10.0,
    faults: Annotated[OnOff, typer.Option(help="Whether things go wrong on purpose.")] = OnOff.ON,
    db: Annotated[
        str | None,
        typer.Option(metavar="URL", help="SQLite or Postgres; its rocket_ tables are made anew."),
    ] = None,
    store: Annotated[
        str | None, typer.Option(metavar="URL", help="A store, not to be killed.")
    ] = None,
    spark: Annotated[
        OnOff, typer.Option(help="Whether Spark adds up too, and holds all to the table.")
    ] = OnOff.ON,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave what was made, and say how to look at it.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Throw the same dice as another run.")] = None,
) -> None:
    """Run Rocket Rides, with faults; exit 0 only if every total agreed in the end.

    Database and store are in a temporary directory unless given.
    """
    seed = secrets.randbelow(1_000_000) if seed is None else seed
    tally = Tally()
    view = View(tally)
    with _told_in_one_line(), ExitStack() as end:
        home = Path(tempfile.mkdtemp(prefix="rocket-rides-"))
        if not keep:
            end.callback(shutil.rmtree, home, ignore_errors=True)
        directory = None if store else home / "store"
        if directory:
            end.callback(embedded.stop, directory, now=True)
        place = Place(
            db or f"sqlite:///{home / 'rides.db'}",
            store or f"embedded://{directory}",
            f"{STREAM}-{secrets.token_hex(4)}",
            home,
        )
        engine = open_database(place.database)
        end.callback(engine.dispose)
        refuse_strangers(engine)
        create_tables(engine)
        stream = end.enter_context(headwater.connect(place.store)).stream(place.stream)
        view.say(f"Rocket Rides: {rides} rides in {seconds:g} s, faults {faults}, seed {seed}")
        job = end.enter_context(Spark(place, engine)) if spark is OnOff.ON else None
        with view.shown(), Supervisor(place, seed, tally, view.note) as supervisor:
            on = faults is OnOff.ON
            clients = Simulator(supervisor.port, rides, seconds, doubles=on, seed=seed, tally=tally)
            killer = Killer(supervisor, directory, seconds, seed, tally, view.note) if on else None
            audit = Audit(engine, stream, JOB if job else None)
            demo = Demo(clients, supervisor, killer, audit, view, job)
            demo.run()
        if not demo.conclude() or (job and not _reconciled(job, place, engine, view)):
            # All files stay, so that the cause can be found.
            end.pop_all()
            view.say(f"databases, and what the processes said, are left in {home}")
            raise typer.Exit(1)
        if keep:
            where = ["--store", place.store, "--db", place.database]
            view.say(f"see it:         {shlex.join(['headwater', 'console', *where])}")
            view.say(f"and remove it:  {shlex.join(['rm', '-r', str(home)])}")
        else:
            stream.delete()


def _reconciled(job: Spark, place: Place, engine: sa.Engine, view: View) -> bool:
    """Compare all totals with the table; then spoil one, and let it be found and corrected."""
    found = job.reconcile()
    view.say(f"Spark {found.sentence()}", "red" if found.drifted or found.lost else "green")
    if found.drifted or found.lost or found.phantoms or found.doubles:
        return False
    wrong = repair(job, place, engine, view.say)
    for what in wrong:
        view.say(f"wrong: {what}", "red")
    return not wrong


@contextmanager
def _told_in_one_line() -> Iterator[None]:
    try:
        yield
    except HeadwaterError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(1) from None
    except sa.exc.SQLAlchemyError as error:
        # Without its own words, which may hold a password.
        typer.echo(f"error: no use of this database ({type(error).__name__}); check --db", err=True)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app()
