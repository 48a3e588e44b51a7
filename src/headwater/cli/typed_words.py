"""What the library refuses, in the words of the command that was typed.

The library names its arguments (``ack_ms must be from 1 to ...``); who typed a command knows its
options instead (``--ack-ms``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

# An argument at the beginning of a message.
_SUBJECT: Final = re.compile(r"^(the count of )?(\w+)(?= (?:must|needs|is) )")
# Elsewhere, only a name with an underscore is surely not English; in quotes it is the user's.
_NAME: Final = re.compile(r"(?<![\w'\"./:-])[a-z]+(?:_[a-z]+)+(?![\w'\"/])")


def as_typed(text: str, parameters: Iterable[Any]) -> str:
    """Return a message with the options and arguments of a command for those of the library."""
    spelled = {one.name: spelling(one) for one in parameters}

    def option(name: str) -> str | None:
        likely = [name, name.removesuffix("_ms"), name.removeprefix("write_")]
        if name == "ack_ms":
            # What a channel leases for so long.
            likely.append("lease")
        return next((spelled[one] for one in likely if one in spelled), None)

    def subject(found: re.Match[str]) -> str:
        named = option(found[2])
        return found[0] if named is None else f"{found[1] or ''}{named}"

    text = _SUBJECT.sub(subject, text)
    return _NAME.sub(lambda found: option(found[0]) or found[0], text)


def not_utf8(text: str, parameters: Iterable[Any], given: Mapping[str, Any]) -> str | None:
    """Return that an argument is not UTF-8, when a message is about that; else None.

    Python keeps such bytes of a command line as halves of surrogate pairs. Values of messages may
    have them: they are bytes.
    """
    if "surrogate" not in text:
        return None
    for one in parameters:
        value = given.get(one.name)
        for word in value if isinstance(value, list | tuple) else [value]:
            if isinstance(word, str) and not _is_utf8(word):
                # A URL may have a password.
                shown = "" if "://" in word else f" {word!r}"
                return f"{spelling(one)}{shown} is not UTF-8; encode it so"
    return None


def _is_utf8(word: str) -> bool:
    try:
        word.encode()
    except UnicodeEncodeError:
        return False
    return True


def spelling(parameter: Any) -> str:
    """Return an option or an argument as it is typed: --ack-ms, OFFSET."""
    if parameter.param_type_name == "option":
        return str(parameter.opts[0])
    return str(parameter.metavar).strip("[].")
