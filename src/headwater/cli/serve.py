"""``headwater serve`` and ``headwater console``: a store over HTTP and for Redis clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli import output
from headwater.cli.options import History, ServedDatabase, ServedFarm, StoreUrl, grouped
from headwater.serve.limits import HttpLimits, RespLimits


@grouped
def serve(
    http_limits: HttpLimits,
    resp_limits: RespLimits,
    http: Annotated[
        str,
        typer.Option(metavar="ADDR", help="Host and port to listen on; port 0 takes a free one."),
    ] = "127.0.0.1:6300",
    resp: Annotated[
        str | None,
        typer.Option(
            metavar="ADDR",
            help="Also serve Redis clients at this host and port.",
            show_default=False,
        ),
    ] = None,
    farm: ServedFarm = None,
    db: ServedDatabase = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            envvar="HEADWATER_TOKENS",
            help="The file of tokens, made by `headwater token`; without it, everybody on this "
            "machine may do everything.",
            show_default=False,
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    workers: Annotated[int, typer.Option(metavar="N", help="Serve with N processes.")] = 1,
    requests_per_s: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="HTTP requests a second that each token may make; 0: no limit."
        ),
    ] = 0,
    origin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Allow requests from pages of this origin (CORS); * is any; may be repeated.",
            show_default=False,
        ),
    ] = None,
    max_series: Annotated[
        int, typer.Option(metavar="N", help="The highest number of series of objects in /metrics.")
    ] = 250_000,
    history: History = 100,
    tls_cert: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Serve TLS with this certificate.", show_default=False),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The key of the certificate.", show_default=False),
    ] = None,
    store: StoreUrl = None,
) -> None:
    """Serve the store over HTTP and RESP, to programs in any language, until Ctrl-C or SIGTERM.

    Without tokens it listens on the loopback only. Limits are those of each process. After either
    signal, running requests are completed, and the exit code is 0.
    """

    def ready(home: str, *urls: str) -> None:
        output.say(f"serving on {' and '.join(urls)}")
        output.say(f"console at {urls[0]}{home}")

    _serve(
        ready,
        http,
        store,
        workers,
        None if resp is None else (resp, resp_limits),
        limits=http_limits,
        tokens=tokens,
        read_only=read_only,
        requests_per_s=requests_per_s,
        origins=tuple(origin or ()),
        tls_cert=tls_cert,
        tls_key=tls_key,
        farm=farm,
        db=db,
        max_series=max_series,
        history=history,
    )


def console(
    http: Annotated[
        str,
        typer.Option(
            metavar="ADDR", help="Host and port of the loopback; port 0 takes a free one."
        ),
    ] = "127.0.0.1:0",
    read_only: Annotated[bool, typer.Option("--read-only", help="Refuse all changes.")] = False,
    no_open: Annotated[
        bool, typer.Option("--no-open", help="Print the address, and open no browser.")
    ] = False,
    farm: ServedFarm = None,
    db: ServedDatabase = None,
    history: History = 100,
    store: StoreUrl = None,
) -> None:
    """Show the store in a browser, until Ctrl-C or SIGTERM.

    It serves this machine only, and everybody on it may do everything. `headwater serve` has the
    same pages under /console, with tokens, for other machines.
    """

    def ready(home: str, url: str) -> None:
        output.say(f"the console is at {url}{home}; Ctrl-C ends it")
        if not no_open:
            import webbrowser

            webbrowser.open(url + home)

    _serve(ready, http, store, read_only=read_only, farm=farm, db=db, history=history)


def _serve(
    ready: Callable[..., None],
    http: str,
    store: str | None,
    workers: int = 1,
    resp: tuple[str, RespLimits] | None = None,
    **facts: Any,
) -> None:
    """Serve until a signal; ``ready`` is called with the path of the console, and the URLs."""
    from headwater.kernel.packaging import extra_needed

    with extra_needed("serve"):
        from headwater.app.serving import ServedStore, run_server
        from headwater.serve.console.service import HOME
        from headwater.serve.listening import parse_address
        from headwater.serve.store_server import RespListening
    from headwater.app.log_lines import configure
    from headwater.kernel.profiles import store_of

    served = ServedStore(
        store=store_of(store, None),
        http=parse_address(http),
        resp=resp and RespListening(parse_address(resp[0]), resp[1]),
        **facts,
    )
    configure("text", None, {})
    run_server(served, workers, partial(ready, HOME))
