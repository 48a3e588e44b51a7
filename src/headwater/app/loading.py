"""From the text "module:app" to the application that it names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any

from headwater.app.application import App
from headwater.errors import InvalidInput


def load_app(target: str) -> App:
    """Import a module, from the working directory too, and return the App of that name in it.

    Without a name it is ``app``. Raises InvalidInput, also for whatever the import raises.
    """
    module_name, _, name = target.partition(":")
    module = _imported(module_name, target)
    found = module
    for step in (name or "app").split("."):
        found = getattr(found, step, None)
    if isinstance(found, App):
        return found
    apps = [key for key, value in vars(module).items() if isinstance(value, App)]
    hint = f"did you mean {module_name}:{apps[0]}?" if apps else "write app = headwater.App() there"
    raise InvalidInput(f"{target!r} names no App; {hint}")


def _imported(name: str, target: str) -> Any:
    if not name or not all(step.isidentifier() for step in name.split(".")):
        raise InvalidInput(
            f"{target!r} is not a module and a name; write module:app, as in shop.jobs:app"
        )
    if name.endswith(".py"):
        app = target.partition(":")[2] or "app"
        raise InvalidInput(f"{name!r} is a file; write {name.removesuffix('.py')}:{app}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = importlib.import_module(name) if _is_there(name) else None
    except Exception as error:
        raise InvalidInput(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if module is None:
        raise InvalidInput(
            f"there is no module {name!r} in {here} or among what is installed; check the name, or "
            "change to the directory of the module"
        )
    return module


def _is_there(name: str) -> bool:
    """Return whether there is such a module; whatever it lies in is imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError as error:
        # It lies in nothing, or in a module that is not a package.
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return False
        raise
