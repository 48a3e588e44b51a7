"""Errors as problem+json (RFC 9457): the name of the error in Headwater's tree, and its facts."""

from __future__ import annotations

import http
from typing import Any, Final

import msgspec

from headwater import errors
from headwater.errors import HeadwaterError
from headwater.serve.http.messages import Refused, Reply

PROBLEM: Final = "application/problem+json"
TYPE: Final = "urn:headwater:error:"

# The nearest class of an error decides.
STATUSES: Final[dict[type[HeadwaterError], int]] = {
    errors.InvalidInput: 400,
    errors.Undecodable: 400,
    errors.ExtraMissing: 501,
    errors.FormatTooNew: 500,
    errors.StoreError: 503,
    errors.AccessDenied: 502,
    errors.StoreTooOld: 502,
    errors.OutcomeUnknown: 504,
    errors.UnknownStream: 404,
    errors.UnknownTopic: 404,
    errors.UnknownGroup: 404,
    errors.UnknownReader: 404,
    errors.UnknownIck: 404,
    errors.UnknownQueue: 404,
    errors.LogError: 500,
    errors.StaleSequence: 409,
    errors.ReusedSequence: 409,
    errors.PartitionMismatch: 409,
    errors.IckError: 409,
    errors.QueueError: 409,
    errors.TimelineError: 503,
    errors.QuorumFailed: 504,
    errors.ReshardRefused: 409,
    errors.OutboxError: 409,
    errors.DatabaseUnreachable: 503,
    errors.DatabaseRefused: 502,
    errors.UnknownConsumer: 404,
    errors.UnknownTimedJob: 404,
    HeadwaterError: 500,
}


class Problem(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Why a request was not done; ``detail`` ends with the cure, ``facts`` are the error's own."""

    type: str
    title: str
    status: int
    detail: str
    request_id: str
    facts: dict[str, Any] = {}


def status_of(error: HeadwaterError) -> int:
    """Return the status by which an error is answered."""
    return next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)


def problem_of(error: HeadwaterError, request_id: str) -> Reply:
    """Return the reply to a request that the library refused, or that failed."""
    status = status_of(error)
    name = type(error).__name__
    facts = {
        fact: value
        for fact, value in vars(error).items()
        if not fact.startswith("_") and isinstance(value, str | int | float | None)
    }
    return _reply(
        Problem(
            type=TYPE + name,
            title=name,
            status=status,
            detail=str(error),
            request_id=request_id,
            facts=facts,
        )
    )


def problem_of_refusal(refused: Refused, request_id: str) -> Reply:
    """Return the reply to a request that HTTP itself refuses."""
    title = http.HTTPStatus(refused.status).phrase
    headers = f"Allow: {refused.allow}\r\n".encode() if refused.allow else b""
    if refused.status == 401:
        headers += b"WWW-Authenticate: Bearer\r\n"
    problem = Problem(
        type="about:blank",
        title=title,
        status=refused.status,
        detail=str(refused),
        request_id=request_id,
    )
    return _reply(problem, headers, close=refused.close)


def _reply(problem: Problem, headers: bytes = b"", *, close: bool = False) -> Reply:
    if problem.status in (429, 503):
        headers += b"Retry-After: 1\r\n"
    headers += b"X-Request-ID: %b\r\n" % problem.request_id.encode()
    return Reply(problem.status, msgspec.json.encode(problem), PROBLEM, headers, close)
