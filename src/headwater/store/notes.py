"""Small notes beside the data, in a hash of their own: when an alarm began, how a check ended."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from headwater.store.call import Argument, Call, Operation

# Where archives are: the name of the archiver as a reader -> the place, without its secrets.
ARCHIVES: Final = "hw:{archives}"


class StoredNote(NamedTuple):
    """A note, and when it was written, by the clock of the server."""

    at_ms: int
    text: bytes


def keep_notes(
    record: str,
    notes: Mapping[str, str | bytes],
    forgotten: Iterable[str] = (),
    *,
    most: int,
    replace: bool,
) -> Operation[None]:
    """Keep notes, ``most`` in all, and forget others; one that is there stays unless replaced."""
    words: list[Argument] = [most, int(replace), len(notes)]
    for field, text in notes.items():
        words += [field, text]
    words += forgotten
    yield Call("hw_note_keep", record, tuple(words), repeatable=True)


def all_notes(record: str) -> Operation[dict[str, StoredNote]]:
    """Return the notes of a record; one in another form is left out."""
    reply = yield Call("hw_note_list", record, read_only=True)
    found = {}
    for field, text in zip(reply[::2], reply[1::2], strict=True):
        at_ms, _, note = text.partition(b" ")
        if at_ms.isdigit():
            found[field.decode("utf-8", "replace")] = StoredNote(int(at_ms), note)
    return found
