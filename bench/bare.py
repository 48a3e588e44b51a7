"""The least that a web framework can do: takes JSON and answers with JSON, and keeps nothing."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

RECORD = {"key": "a2V5", "score": 1.0, "member": "bWVtYmVy"}
RECORDS = {"records": {"key": [RECORD] * 10}, "duration": "1ms"}


async def write(request: Request) -> JSONResponse:
    return JSONResponse({"inserted": len(await request.json()), "duration": "1ms"})


async def select(request: Request) -> JSONResponse:
    await request.json()
    return JSONResponse(RECORDS)


app = Starlette(routes=[Route("/", write, methods=["POST"]), Route("/", select)])
