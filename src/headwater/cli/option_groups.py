"""Options that commands share, as one value: a dataclass whose fields are options.

    @dataclass(frozen=True)
    class FarmFlags(OptionGroup):
        instances: Instances
        max_size: MaxSize = 10_000

    @grouped
    def walk(farm: FarmFlags, once: bool = False) -> None: ...

``headwater ... walk`` then takes --instances, --max-size and --once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from typing import Any, get_type_hints


@dataclass(frozen=True)
class OptionGroup:
    """A group of options; each field is annotated as a parameter of a command would be."""


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that takes the options of its groups one by one, as Typer needs them."""
    hints = get_type_hints(command, include_extras=True)
    groups = {
        name: hint
        for name, hint in hints.items()
        if isinstance(hint, type) and issubclass(hint, OptionGroup)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(
                parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            )

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        command(**given)

    run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, __name__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _parameters(group: type[OptionGroup]) -> list[inspect.Parameter]:
    """Return a parameter for each option of a group."""
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if field.default is MISSING else field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
