# SPDX-License-Identifier: Apache-2.0
"""What the annotation of a parameter or a setting says about its argument. Pure; any thread."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, MISSING
import inspect
from math import inf, isfinite
from typing import Any, get_args, get_type_hints

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.parameters import ParameterError

# the default of a parameter that must be given
EMPTY = inspect.Parameter.empty


class WrongFlag(ParameterError, WrongCommandLine):
    """The value of a flag is not allowed."""


@dataclass(frozen=True, slots=True)
class Argument:
    """
    What an annotation does not say about an argument.

    help      what it is; the default is added, except for one that says nothing
    metavar   name of the value in the help
    parse     from the text to the value; raises ArgumentTypeError
    flags     in the place of the flag of the parameter's name
    names     returns the names that a shell completes, without an error
    nargs     as of argparse, for a flag of several values
    either    flags of one name exclude each other
    action    as of argparse, for a flag without a value that changes others
    names_default   whether the help names the default
    bounds    least and largest number, both allowed
    """

    help: str
    metavar: str = ''
    parse: Callable[[str], Any] | None = None
    flags: tuple[str, ...] = ()
    names: Callable[..., list[str]] | None = None
    nargs: str = ''
    either: str = ''
    action: type[argparse.Action] | None = None
    names_default: bool = True
    bounds: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a function, or one flag of a group."""

    name: str
    hint: Any
    default: Any
    is_flag: bool = True

    @property
    def argument(self) -> Argument:
        found: Argument = get_args(self.hint)[1]
        return found

    @property
    def flags(self) -> Sequence[str]:
        """The flags as they are typed, the name in the help for an argument that is none."""
        if not self.is_flag:
            return [self.argument.metavar or self.name]
        return self.argument.flags or [f'--{self.name.replace("_", "-")}']

    def checked(self, value: Any) -> Any:
        """Return the value. Raises WrongFlag for a number out of bounds."""
        low, high = self.argument.bounds or (-inf, inf)
        if value is not None and self.argument.bounds and not low <= value <= high:
            allowed = f'in [{low:.15g}, {high:.15g}]' if high < inf else f'at least {low:.15g}'
            raise WrongFlag(f'{self.flags[0]} must be {allowed}, got {value:.15g}')
        return value


def number(
    unit: str, high: float, *, least: float = 0.0, includes_least: bool = False
) -> Callable[[str], float]:
    """Return the parser of a number above `least`, or of at least `least`, up to `high`."""
    bounds = f'{"[" if includes_least else "("}{least:g}, {high:g}]'

    def parse(given: str) -> float:
        try:
            found = float(given)
        except ValueError:
            found = float('nan')
        is_low = found < least or (found == least and not includes_least)
        if not isfinite(found) or is_low or found > high:
            raise argparse.ArgumentTypeError(f'must be in {bounds} {unit}, got {given}')
        return found

    return parse


def parameters_of(group: type[Any]) -> list[Parameter]:
    """Return a flag for each field of a dataclass that has an Argument."""
    hints = get_type_hints(group, include_extras=True)
    return [
        Parameter(each.name, hints[each.name], EMPTY if each.default is MISSING else each.default)
        for each in fields(group)
        if get_args(hints[each.name])
    ]
