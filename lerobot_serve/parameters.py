# SPDX-License-Identifier: Apache-2.0
"""
Describe each node parameter once, for its declaration, checks and documentation.

Each node has one frozen dataclass whose fields are made with `parameter`. It is the source of the
declaration to ROS (lerobot_serve.ros.node.node_parameters), the check of every value, and the
table in docs/parameters.md. Plain; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, Field, field, fields, MISSING
import difflib
import math
from typing import Any, get_type_hints, TypeVar

T = TypeVar('T')
INT_LIMIT = 2**63
TYPE_NAMES = {bool: 'bool', int: 'integer', float: 'double', str: 'string', tuple: 'string array'}


class ParameterError(ValueError):
    """A value outside the bounds of a parameter; names parameter, value and bound."""


@dataclass(frozen=True, slots=True)
class ParameterSpec:
    """
    One parameter: `name` is its ROS name, with a dot between group and member, `field` the name of
    its field in the dataclass.
    """

    name: str
    field: str
    kind: type[Any]
    default: Any
    text: str
    unit: str = ''
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = False
    on_configure: bool = False

    @property
    def changes(self) -> str:
        """When the value may change, as text for the reference."""
        return 'live' if self.live else 'when unconfigured' if self.on_configure else 'at start'

    @property
    def allowed(self) -> str:
        """The bounds as text, for errors and the reference."""
        if self.choices:
            return 'one of ' + ', '.join(choice or "''" for choice in self.choices)
        if self.low is not None and self.high is not None:
            return f'in [{self.low:g}, {self.high:g}]'
        if self.low is not None:
            return f'at least {self.low:g}'
        if self.high is not None:
            return f'at most {self.high:g}'
        if self.kind is bool:
            return 'true or false'
        return 'a finite double' if self.kind is float else self._a_kind

    @property
    def _a_kind(self) -> str:
        return f'{"an" if self.kind is int else "a"} {TYPE_NAMES[self.kind]}'

    def check(self, value: Any) -> Any:
        """Return the value converted to the declared type. Raises ParameterError."""
        if self.kind is float and type(value) is int and abs(value) <= INT_LIMIT:
            value = float(value)
        if self.kind is tuple and isinstance(value, list):
            value = tuple(value)
        is_of_kind = type(value) is self.kind
        if not is_of_kind or (
            self.kind is tuple and not all(isinstance(item, str) for item in value)
        ):
            raise ParameterError(f'{self.name} must be {self._a_kind}, got {value!r}')
        if self.choices and value not in self.choices:
            raise ParameterError(f'{self.name} must be {self.allowed}, got {value!r}')
        if self.kind in (int, float) and not self._inside(value):
            raise ParameterError(f'{self.name} must be {self.allowed}, got {value}')
        return value

    def _inside(self, value: float) -> bool:
        low = -math.inf if self.low is None else self.low
        high = math.inf if self.high is None else self.high
        # isfinite fails for integers beyond the range of a float
        return (self.kind is int or math.isfinite(value)) and low <= value <= high


def parameter(
    default: T,
    text: str,
    *,
    unit: str = '',
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    live: bool = False,
    on_configure: bool = False,
    name: str = '',
) -> T:
    """
    Describe one field. `live` parameters may change while the node runs, `on_configure` parameters
    while a managed node is unconfigured; all others are read-only. `name` is required if it
    differs from the field, for example `canary.plan`.
    """
    details = {
        'name': name,
        'text': text,
        'unit': unit,
        'low': low,
        'high': high,
        'choices': choices,
        'live': live,
        'on_configure': on_configure,
    }
    return field(default=default, metadata=details)


# type hints are evaluated from text: 7 ms for each class
_SPECS: dict[type[Any], tuple[ParameterSpec, ...]] = {}


def parameter_specs(parameters: type[Any]) -> tuple[ParameterSpec, ...]:
    """Return the specifications of a dataclass of parameters, in order."""
    if parameters not in _SPECS:
        kinds = get_type_hints(parameters)
        found = tuple(_spec(entry, kinds[entry.name]) for entry in fields(parameters))
        _SPECS[parameters] = found
    return _SPECS[parameters]


def _spec(entry: Field[Any], kind: Any) -> ParameterSpec:
    if entry.default is MISSING:
        raise TypeError(f'{entry.name}: every parameter needs a default')
    details = {**entry.metadata, 'name': entry.metadata['name'] or entry.name}
    kind = getattr(kind, '__origin__', kind)
    return ParameterSpec(field=entry.name, kind=kind, default=entry.default, **details)


def build_parameters(parameters: type[T], values: dict[str, Any]) -> T:
    """
    Return the dataclass with `values`, by name, over its defaults. Every value is checked.

    The class may define `check(self)` for rules between parameters, and `complete(values)` for
    defaults that depend on a value. Raises ParameterError.
    """
    complete = getattr(parameters, 'complete', dict)
    known = {spec.name: spec for spec in parameter_specs(parameters)}
    for name in values:
        if name not in known:
            raise ParameterError(_unknown(name, known))
    values = complete(values)
    built = parameters(**{known[n].field: known[n].check(value) for n, value in values.items()})
    check = getattr(built, 'check', None)
    if check:
        check()
    return built


def closest_name(name: str, known: Iterable[str]) -> str:
    """Return the known name closest to `name`, empty when none is close."""
    found = difflib.get_close_matches(name, list(known), 1)
    return found[0] if found else ''


def _unknown(name: str, known: Iterable[str]) -> str:
    near = closest_name(name, known)
    hint = f'did you mean {near}? ' if near else ''
    return f'{name} is not a parameter; {hint}there are {", ".join(known)}'


def with_changes(current: T, values: dict[str, Any], *, unconfigured: bool = False) -> T:
    """
    Return `current` with `values` changed. Raises ParameterError, also for one that may not change
    now; `unconfigured` is true for a managed node in that state.
    """
    kept = {spec.name: getattr(current, spec.field) for spec in parameter_specs(type(current))}
    for spec in parameter_specs(type(current)):
        may_change = spec.live or (spec.on_configure and unconfigured)
        if spec.name not in values or may_change:
            continue
        if spec.check(values[spec.name]) != kept[spec.name]:
            raise ParameterError(f'{spec.name} is {_fixed(spec, kept[spec.name])}')
    return build_parameters(type(current), {**kept, **values})


def _fixed(spec: ParameterSpec, value: Any) -> str:
    if spec.on_configure:
        return (
            f'{value!r} while the node is configured; deactivate and clean up the node, set the '
            'parameter, then configure and activate the node'
        )
    return f'fixed at start ({value!r}); restart the node with the new value'


def markdown_table(parameters: type[Any]) -> str:
    """Return the reference table of one node in Markdown."""
    rows = [
        '| parameter | type | default | unit | allowed | changes | what it does |',
        '|---|---|---|---|---|---|---|',
    ]
    for spec in parameter_specs(parameters):
        default = list(spec.default) if spec.kind is tuple else spec.default
        shown = f'`{default!r}`' if spec.kind in (str, tuple) else f'`{str(default).lower()}`'
        rows.append(
            f'| `{spec.name}` | {TYPE_NAMES[spec.kind]} | {shown} | {spec.unit} | '
            f'{spec.allowed} | {spec.changes} | {spec.text} |'
        )
    return '\n'.join(rows)
