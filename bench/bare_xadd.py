"""The least that a web framework can do to write: JSON in, one XADD, its id out."""

from __future__ import annotations

import os

import redis.asyncio
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

client = redis.asyncio.from_url(os.environ.get("BENCH_SOCKET", "redis://"))


async def write(request: Request) -> JSONResponse:
    message = await request.json()
    found = await client.xadd("bare", {"tag": message["tag"], "value": message["value"]})
    return JSONResponse({"id": str(found)}, 201)


app = Starlette(routes=[Route("/", write, methods=["POST"])])
