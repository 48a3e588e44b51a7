"""How deep a JSON document is nested, found without recursion and before it is decoded."""

from __future__ import annotations

import re
from typing import Final

from headwater.serve.http.messages import Refused

MAX_NESTING: Final = 100

# Both kinds of brackets count alike; of everything else only quotes are left.
_ALIKE: Final = bytes.maketrans(b"{}", b"[]")
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_ESCAPE: Final = re.compile(rb"\\.", re.DOTALL)
_TEXT: Final = re.compile(rb'"[^"]*"')


def check_nesting(document: bytes | bytearray) -> None:
    """Accept a document that is nested up to MAX_NESTING deep; raises Refused, 400, for another.

    Whether it is JSON at all is left to its decoder. Costs a fraction of decoding.
    """
    if len(document) <= MAX_NESTING:
        return
    if b"\\" in document:
        document = _ESCAPE.sub(b"", document)
    # Most texts are two quotes by now; only one that has brackets is more.
    brackets = document.translate(_ALIKE, _OTHERS).replace(b'""', b"")
    if b'"' in brackets:
        brackets = _TEXT.sub(b"", brackets)
    for _ in range(MAX_NESTING):
        if b"[]" not in brackets:
            break
        # Removes the innermost level.
        brackets = brackets.replace(b"[]", b"")
    # Those that no bracket closes are counted as well: a decoder descends into each of them.
    if b"[]" in brackets or brackets.count(b"[") > MAX_NESTING:
        raise Refused(
            400,
            f"the document is nested more than {MAX_NESTING} deep; send a flatter one",
            close=True,
        )
