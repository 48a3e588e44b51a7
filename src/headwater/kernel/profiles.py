"""Profiles: what ``headwater.toml`` says in place of environment variables that are not set.

    default = "dev"

    [profiles.dev]
    store = "embedded:.headwater"

    [profiles.production]
    store = "env:REDIS_URL"
    db = "postgresql://app@db.internal/orders"

The file is in the working directory or the nearest directory above it. The command line uses a
profile that is named, else the file's default; the library uses one only where it is asked to,
and logs when it opens another store than the command line beside it.
A value is never shown: it may be a secret.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from headwater.errors import InvalidInput

FILE_NAME = "headwater.toml"
PROFILE_VARIABLE = "HEADWATER_PROFILE"
CONFIG_VARIABLE = "HEADWATER_CONFIG"
# What a profile may say, and the variable in whose place it says it.
VARIABLES = {
    "store": "HEADWATER_URL",
    "db": "HEADWATER_DB",
    "instances": "HEADWATER_INSTANCES",
    "timeline_token": "HEADWATER_TIMELINE_TOKEN",
    "timeline_read_token": "HEADWATER_TIMELINE_READ_TOKEN",
}
_REFERENCE = "env:"

log = logging.getLogger("headwater.store")


class Profile(NamedTuple):
    """One profile of a file: the values of variables that are not set.

    ``instead`` names those that were set already, and so count instead of what it says.
    """

    name: str
    file: Path
    values: dict[str, str]
    instead: tuple[str, ...]

    def __repr__(self) -> str:
        return f"profile {self.name!r} of {self.file}"


def load(
    name: str | None, config: str | None = None, *, named_by: str = f"${CONFIG_VARIABLE}"
) -> Profile | None:
    """Return a profile by name, else the default one of the file; None when there is neither.

    ``config`` is the file, else ``$HEADWATER_CONFIG``, else the nearest headwater.toml; an error
    names ``named_by`` as the way to name it. Raises InvalidInput for a profile or a file that is
    not there, and for what cannot be meant in it.
    """
    config = config or os.environ.get(CONFIG_VARIABLE)
    file = Path(config).absolute() if config else _nearest(named_by)
    if file is None:
        if name is None:
            return None
        raise InvalidInput(
            f"there is no {FILE_NAME} in the current directory or above it, so no profile "
            f"{name!r}; write one, or name the file by {named_by}"
        )
    content = _parse(file, named_by)
    name = name if name is not None else content.get("default")
    if name is None:
        return None
    profiles = content.get("profiles", {})
    if name not in profiles:
        raise InvalidInput(f"{file} has no profile {name!r}; {_meant(name, profiles)}")
    profile = Profile(name, file, {}, tuple(_already_set(profiles[name])))
    for key, value in profiles[name].items():
        if VARIABLES[key] not in profile.instead:
            profile.values[VARIABLES[key]] = _value(f"{key} of {profile}", value, file.parent)
    return profile


def store_of(url: str | None, profile: str | None) -> str | None:
    """Return the URL that ``connect`` was asked for by one of both; None when by neither.

    Raises InvalidInput.
    """
    if profile is None:
        if url is None:
            _warn_of_another_store()
        return url
    if url is not None:
        raise InvalidInput("connect takes a URL or a profile, not both; leave one out")
    found = load(profile)
    store = VARIABLES["store"]
    if found is None or store not in (*found.values, *found.instead):
        raise InvalidInput(f'{found} names no store; add a line store = "URL" to it')
    return found.values.get(store) or os.environ[store]


def _warn_of_another_store() -> None:
    """Log if commands use a store by the file's default while this program uses an embedded one."""
    store = VARIABLES["store"]
    if os.environ.get(store) or os.environ.get("HEADWATER_DIR"):
        return
    try:
        found = load(None)
    except InvalidInput:
        return  # commands report what is wrong with the file
    if found and store in found.values and not _is_default(found.values[store]):
        log.warning(
            "%s names a store, which commands use here; this program uses the embedded one in "
            "%s: connect(profile=%r) uses that of the profile",
            found, Path.cwd() / ".headwater", found.name,
        )  # fmt: skip


def _is_default(url: str) -> bool:
    path = url.removeprefix("embedded:").removeprefix("//") or ".headwater"
    return url.startswith("embedded:") and Path(path).absolute() == Path.cwd() / ".headwater"


@contextmanager
def applied(profile: Profile | None) -> Iterator[None]:
    """Set the environment variables that a profile has values for, until the block ends."""
    added = {} if profile is None else profile.values
    os.environ.update(added)
    try:
        yield
    finally:
        for variable in added:
            os.environ.pop(variable, None)


def _nearest(named_by: str) -> Path | None:
    try:
        folder = Path.cwd()
    except FileNotFoundError:
        return None  # the current directory was removed
    for place in (folder, *folder.parents):
        file = place / FILE_NAME
        try:
            owner = file.stat().st_uid
        except OSError:
            continue
        if owner not in (0, os.geteuid()):
            # In /tmp, say, where anybody could lead us to a store of theirs.
            raise InvalidInput(
                f"{file} belongs to another user; name it by {named_by} if you trust it"
            )
        return file
    return None


def _parse(file: Path, named_by: str) -> dict[str, Any]:
    import tomllib

    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidInput(f"cannot read {file}: {error.strerror}; correct {named_by}") from None
    except ValueError as error:
        raise InvalidInput(f"{file} is not TOML: {error}; correct it") from None
    _refuse_unknown(content, ("default", "profiles"), str(file))
    profiles = content.get("profiles", {})
    if not isinstance(content.get("default", ""), str) or not isinstance(profiles, dict):
        raise InvalidInput(f'{file} says default = "NAME" and has tables [profiles.NAME]')
    for name, settings in profiles.items():
        if not isinstance(settings, dict):
            raise InvalidInput(f"{file}: profiles.{name} must be a table [profiles.{name}]")
        _refuse_unknown(settings, VARIABLES, f"profile {name!r} of {file}")
        for key, value in settings.items():
            if not isinstance(value, str) or not value:
                raise InvalidInput(f"{key} of profile {name!r} of {file} must be a text in quotes")
    return content


def _refuse_unknown(found: Iterable[str], known: Iterable[str], where: str) -> None:
    for key in found:
        if key not in known:
            raise InvalidInput(f"{where} has an unknown key {key!r}; {_meant(key, known)}")


def _meant(name: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names) or 'none'}"


def _already_set(keys: Iterable[str]) -> Iterator[str]:
    return (VARIABLES[key] for key in keys if os.environ.get(VARIABLES[key]))


def _value(what: str, value: str, folder: Path) -> str:
    if value.startswith(_REFERENCE):
        variable = value.removeprefix(_REFERENCE)
        value = os.environ.get(variable, "")
        if not value:
            raise InvalidInput(f"{what} is that of ${variable}, which is not set; set it")
        return value
    return _anchored(value, folder)


def _anchored(value: str, folder: Path) -> str:
    """Return a URL whose relative path, if it has one, begins at the folder of the file."""
    for scheme in ("embedded://", "embedded:", "sqlite:///"):
        path = value.removeprefix(scheme)
        if value.startswith(scheme) and path and not path.startswith(("/", ":memory:", "?")):
            return f"{scheme}{folder / path}"
    return value
