"""The names of instances and farms: the URL that a name stands for, and what may be shown of it.

A farm's text holds the passwords of its instances. Whatever is shown, logged or stored in a file is
what ``safe_farm`` returns.
"""

from __future__ import annotations

import re
from typing import Final

from headwater.errors import InvalidInput
from headwater.store.directory import default_directory
from headwater.store.url import resolve

WRITE_ONLY: Final = "writeonly"


def instance_url(text: str) -> str:
    """Return the URL of an instance, which may be named by host:port."""
    return text if "://" in text or text.startswith("embedded:") else f"redis://{text}"


def safe_farm(farm: str) -> str:
    """Return a farm's text without users and passwords; what is not an instance becomes "?"."""
    return re.sub("[^;,]+", lambda word: _safe(word[0]), "".join(farm.split()))


def _safe(word: str) -> str:
    if word.lower() == WRITE_ONLY:
        return WRITE_ONLY
    try:
        return resolve(instance_url(word), default_directory()).safe
    except InvalidInput:
        return "?"
