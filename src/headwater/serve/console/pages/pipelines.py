"""What feeds and reads the log from outside: outbox, consumers, queries of Spark, timed jobs."""

from __future__ import annotations

from headwater.log.lags import lag_at
from headwater.outbox.status import Status
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.http.messages import Refused
from headwater.serve.tokens import Scope
from headwater.spark.queries.status import query_statuses
from headwater.store.many import together
from headwater.timed.operating import history, list_infos


async def show_outbox(call: PageCall) -> Context:
    """Show what is staged in the database, who streams it, and how far its consumers are."""
    _check_everywhere(call)
    database = call.served.database
    if database is None:
        return {"status": None, "consumers": []}
    status: Status = await database.status()
    lags = await call.hw.store.run(
        together(lag_at(one.stream, one.next_offset) for one in status.checkpoints)
    )
    consumers = sorted(zip(status.checkpoints, lags, strict=True), key=lambda row: -row[1].lag)
    return {"status": status, "consumers": consumers}


async def show_spark(call: PageCall) -> Context:
    """Show the streaming queries of Spark that read or write the store."""
    _check_everywhere(call)
    return {"queries": await call.hw.store.run(query_statuses())}


async def show_timed(call: PageCall) -> Context:
    """Show all timed jobs: when each is due, and how its last run ended."""
    _check_everywhere(call)
    return {"jobs": await call.hw.store.run(list_infos())}


async def show_timed_job(call: PageCall) -> Context:
    """Show what happened to a timed job, the newest first."""
    _check_everywhere(call)
    events = await call.hw.store.run(history(call.name, 100))
    return {"job": call.name, "events": events[::-1]}


def _check_everywhere(call: PageCall) -> None:
    if not call.grant.everywhere(Scope.READ):
        raise Refused(403, "this concerns the whole store; sign in with a token for all names (*)")
