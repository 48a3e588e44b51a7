"""What feeds and reads the log from outside: the outbox, queries of Spark, timed jobs."""

from __future__ import annotations

from headwater.kernel.declaring import Scope
from headwater.outbox.status import Status
from headwater.serve.console.calls import Context, PageCall
from headwater.serve.console.history_charts import outbox_charts
from headwater.serve.http.messages import Refused
from headwater.spark.queries.status import query_statuses
from headwater.timed.operating import history, info, list_infos


async def show_outbox(call: PageCall) -> Context:
    """Show what is staged in the database, who streams it, and its batches."""
    check_everywhere(call)
    database = call.served.database
    if database is None:
        return {"status": None, "consumers": 0, "charts": []}
    status: Status = await database.status()
    consumers = {one.consumer for one in status.checkpoints}
    return {"status": status, "consumers": len(consumers), "charts": await outbox_charts(call)}


async def show_spark(call: PageCall) -> Context:
    """Show the streaming queries of Spark that read or write the store."""
    check_everywhere(call)
    return {"queries": await call.hw.store.run(query_statuses())}


async def show_timed(call: PageCall) -> Context:
    """Show all timed jobs: when each is due, and how its last run ended."""
    check_everywhere(call)
    return {"jobs": await call.hw.store.run(list_infos())}


async def show_timed_job(call: PageCall) -> Context:
    """Show when a timed job is due and what happened to it, the newest first."""
    check_everywhere(call)
    run = call.hw.store.run
    events = await run(history(call.name, 100))
    return {"job": call.name, "info": await run(info(call.name)), "events": events[::-1]}


def check_everywhere(call: PageCall) -> None:
    """Check that the client may see all of the store; raises Refused, 403."""
    if not call.grant.everywhere(Scope.READ):
        raise Refused(403, "this concerns the whole store; sign in with a token for all names (*)")
