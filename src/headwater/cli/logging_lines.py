"""What the library logs while a command runs, printed a line each on standard error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from headwater.cli import output


@contextmanager
def logged_lines(logger: str) -> Iterator[None]:
    """Print the warnings and errors of a logger, each as one line, while the block runs."""
    log, printer = logging.getLogger(logger), _Printer()
    log.addHandler(printer)
    try:
        yield
    finally:
        log.removeHandler(printer)


class _Printer(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        output.warn(f"{record.getMessage()}: {error}" if error else record.getMessage())
