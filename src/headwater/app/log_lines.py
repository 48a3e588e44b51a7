"""Log lines that name their part and message: as text for people, or as JSON.

While a handler runs, its log lines have the part, object, offset or id, attempt and trace id of its
message; so do the lines of workers about failed attempts.
"""

from __future__ import annotations

import datetime as dt
import functools
import logging
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from headwater.kernel.handlers import is_async

LogForm: TypeAlias = Literal["text", "json"]
LOG_FORMS: Final = ("text", "json")


class Handling(NamedTuple):
    """A message that a handler works on now."""

    part: str
    object: str
    message: Any


_handling: ContextVar[Handling | None] = ContextVar("headwater_handling", default=None)


def with_log_context(part: str, object: str, handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the handler, so that what it logs names its part and its message."""
    set_now, reset = _handling.set, _handling.reset
    if is_async(handler):

        @functools.wraps(handler)
        async def handle_async(message: Any) -> Any:
            token = set_now(Handling(part, object, message))
            try:
                return await handler(message)
            finally:
                reset(token)

        return handle_async

    @functools.wraps(handler)
    def handle(message: Any) -> Any:
        token = set_now(Handling(part, object, message))
        try:
            return handler(message)
        finally:
            reset(token)

    return handle


def configure(form: LogForm, process: int | None, parts_of: Mapping[str, str]) -> None:
    """Log everything from INFO on to standard error, in a form; ``parts_of`` maps objects to parts.

    A logging configuration that the application makes afterwards takes its place.
    """
    printer = logging.StreamHandler(sys.stderr)
    printer.setFormatter(LineFormatter(form, process, parts_of))
    root = logging.getLogger()
    root.handlers[:] = [printer]
    root.setLevel(logging.INFO)


class LineFormatter(logging.Formatter):
    """Formats a record with what is known of its message."""

    def __init__(self, form: LogForm, process: int | None, parts_of: Mapping[str, str]) -> None:
        super().__init__()
        self._as_json = form == "json"
        self._process = process
        self._parts_of = parts_of

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; as text, a traceback follows on further lines."""
        facts = {"process": self._process, **self._facts(record)}
        facts = {name: value for name, value in facts.items() if value is not None}
        time = dt.datetime.fromtimestamp(record.created, dt.UTC)
        stamp = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        trouble = self.formatException(record.exc_info) if record.exc_info else None
        if self._as_json:
            line = {
                "time": stamp,
                "level": record.levelname.lower(),
                "logger": record.name,
                "message": record.getMessage(),
                **facts,
            }
            if record.exc_info and record.exc_info[0] is not None:
                line |= {"error": record.exc_info[0].__name__, "traceback": trouble}
            return msgspec.json.encode(line, enc_hook=str).decode()
        words = " ".join(f"{name}={value}" for name, value in facts.items())
        text = f"{stamp} {record.levelname:<7} {record.name}: {record.getMessage()}"
        return "\n".join(filter(None, (f"{text}  [{words}]" if words else text, trouble)))

    def _facts(self, record: logging.LogRecord) -> dict[str, Any]:
        failed = getattr(record, "handled", None)
        if failed is not None:
            object, message = failed
            return message_facts(self._parts_of.get(object), object, message)
        handling = _handling.get()
        return {} if handling is None else message_facts(*handling)


def message_facts(part: str | None, object: str, message: Any) -> dict[str, Any]:
    """Return what a line says of a message; never its tag or its value."""
    return {
        "part": part,
        "object": object,
        "partition": getattr(message, "partition", None),
        "offset": getattr(message, "offset", None),
        "id": getattr(message, "id", None),
        "attempt": getattr(message, "attempt", None),
        "trace_id": _trace_id(message),
    }


def _trace_id(message: Any) -> str | None:
    tracing = sys.modules.get("opentelemetry.trace")
    if tracing is not None:
        context = tracing.get_current_span().get_span_context()
        if context.is_valid:
            return format(context.trace_id, "032x")
    carried = message.headers.get("traceparent", b"").split(b"-")
    return carried[1].decode("ascii", "replace") if len(carried) > 1 else None
