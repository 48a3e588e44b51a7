"""``headwater timeline serve``: Roshi's server."""

from __future__ import annotations

from typing import Annotated

import typer

from headwater.cli import output
from headwater.cli.http_options import HttpFlags
from headwater.cli.option_groups import grouped
from headwater.cli.timeline.cli_types import WritingFarmFlags


@grouped
def serve(
    farm: WritingFarmFlags,
    http: HttpFlags,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 6302,
    workers: Annotated[int, typer.Option(metavar="N", help="Serve with N processes.")] = 1,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_TIMELINE_TOKEN",
            help="The token that every request must carry. Set it with the environment variable, "
            "because other users of the machine can see arguments.",
            show_default=False,
        ),
    ] = None,
    read_token: Annotated[
        str | None,
        typer.Option(
            envvar="HEADWATER_TIMELINE_READ_TOKEN",
            help="A token that allows reading only.",
            show_default=False,
        ),
    ] = None,
    lenient: Annotated[
        bool,
        typer.Option(
            "--lenient", help="Accept everything that Roshi accepts, with the same results."
        ),
    ] = False,
    read_strategy: Annotated[
        str,
        typer.Option(
            help="SendAllReadAll, SendOneReadOne, SendAllReadFirstLinger, SendVarReadFirstLinger."
        ),
    ] = "SendAllReadAll",
    read_rate: Annotated[
        int, typer.Option(metavar="N", help="SendVar asks all clusters for N keys a second.")
    ] = 2000,
    promote_after_ms: Annotated[
        int,
        typer.Option(
            "--promote-after-ms",
            help="Milliseconds after which SendVar asks the other clusters too.",
        ),
    ] = 50,
    repair_strategy: Annotated[
        str, typer.Option(help="AllRepairs, NoRepairs or RateLimitedRepairs.")
    ] = "RateLimitedRepairs",
    repair_rate: Annotated[
        int, typer.Option(metavar="N", help="RateLimitedRepairs repairs N elements a second.")
    ] = 1000,
) -> None:
    """Serve timelines over HTTP as Roshi does, until Ctrl-C or SIGTERM.

    Without a token it listens on the loopback only. Rates and limits are those of each process.
    After either signal, running requests are completed, and the exit code is 0.
    """
    from headwater.kernel.packaging import extra_needed

    with extra_needed("serve"):
        from headwater.app.serving import ServedTimelines, run_server
        from headwater.serve.listening import ListenAddress
    from headwater.app.log_lines import configure

    served = ServedTimelines(
        http=ListenAddress(host, port),
        limits=http.limits(),
        instances=farm.instances,
        farm={
            **farm.arguments(),
            "read_strategy": read_strategy,
            "read_rate": read_rate,
            "promote_after_ms": promote_after_ms,
            "repair_strategy": repair_strategy,
            "repair_rate": repair_rate,
        },
        token=token,
        read_token=read_token,
        lenient=lenient,
    )
    configure("text", None, {})
    run_server(served, workers, lambda url: output.say(f"serving timelines on {url}"))
