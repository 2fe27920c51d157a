# SPDX-License-Identifier: Apache-2.0
"""
Read a fleet file, with errors that name the line, and the values that a ROS parameter file has for
one node, so that flags can replace them. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import normpath
from pathlib import Path
from typing import Annotated, Any, TypeVar

from msgspec import Meta, UNSET, UnsetType
import yaml

from lerobot_serve.errors import UserError
from lerobot_serve.files.load import load, Record, Refused, rule
from lerobot_serve.files.parsing import from_yaml, in_one_line
from lerobot_serve.parameters import closest_name, ParameterError
from lerobot_serve.ros.process.command_line import matches_node
from lerobot_serve.state_folder import expanded
from lerobot_serve.tools.fleet.process import LOG_LEVELS

T = TypeVar('T')
Place = tuple[str, ...]
TEXT_LIMIT = 4_000_000


def one_of(names: tuple[str, ...]) -> Meta:
    """Return the bound of a text that is one of some names."""
    return rule(names.__contains__, f'one of {", ".join(names)}')


def whole(low: float, high: float) -> Meta:
    """Return the bounds of an integer."""
    return Meta(ge=int(low), le=int(high), description=f'an integer in [{low:.0f}, {high:.0f}]')


LEVEL = one_of(LOG_LEVELS)
Text = Annotated[str, Meta(min_length=1, description='a text')]
# keys of its own and parameters of a node; nothing after the colon is an empty one
Section = Annotated[dict[str, Any] | None, Meta(description='a mapping of keys and values')]
Optional = Section | UnsetType


class FleetSections(Record, frozen=True):
    """The sections of a fleet file; the plan knows what is in them."""

    servers: Annotated[
        dict[str, Section] | None, Meta(description='a mapping of keys and values')
    ] = None
    router: Optional = UNSET
    gateway: Optional = UNSET
    robots: Section = None
    dashboard: Optional = UNSET
    record: Optional = UNSET
    learner: Optional = UNSET
    loop: Optional = UNSET
    namespace: Annotated[Text | None, Meta(description='a text')] = None
    log_level: Annotated[Annotated[str, LEVEL] | None, LEVEL] = None


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The text of a fleet file, and the folder in which its relative paths begin."""

    name: str
    text: str
    folder: Path

    def sections(self) -> FleetSections:
        """Return what is in the file. Raises UserError."""
        if len(self.text) > TEXT_LIMIT:
            raise UserError(
                f'{self.name}: must have at most {TEXT_LIMIT} characters, got {len(self.text)}'
            )
        try:
            content = from_yaml(self.text)
        except ValueError as error:
            raise UserError(f'{self.name}: {error}') from None
        if not isinstance(content, dict) or not content:
            raise self.error((), f'must have servers, router or robots, got {content!r:.80}')
        return self.load(FleetSections, content, ())

    def load(self, kind: type[T], given: dict[str, Any] | None, place: Place) -> T:
        """Return a section as a record. Raises UserError."""
        try:
            return load(kind, given or {}, '')
        except Refused as refused:
            fault = refused.fault
            # in its own line, if it is a field that is not known
            key = (fault.given,) if isinstance(fault.given, str) else ()
            raise self.error((*place, *map(str, fault.path)), fault.text, key) from None

    def check_field(self, place: Place, key: Place, known: list[str]) -> None:
        """Raise UserError for a field that is not known, with the nearest known one."""
        name = '.'.join(key)
        if name not in known:
            near = closest_name(name, known)
            hint = f'did you mean {near}?' if near else f'allowed are {", ".join(known)}'
            raise self.error(place, f'unknown field {name!r}; {hint}', key)

    def error(self, place: Place, text: str, key: Place = ()) -> UserError:
        """Return an error about a place with the file, the path and the line of `key` in it."""
        line = self.line((*place, *key))
        where = f'{self.name}:{line}' if line else self.name
        words = f'{where}: {".".join(place)}{": " if place else ""}{text}'
        return UserError(in_one_line(words))

    @contextmanager
    def at(self, place: Place) -> Iterator[None]:
        """Raise UserError with this place for an error of what is called."""
        try:
            yield
        except (UserError, ParameterError) as error:
            raise self.error(place, str(error)) from None

    def line(self, place: Place) -> int | None:
        """Return the line of a place, or of the one around it; of a file without mistakes."""
        node, line = yaml.compose(self.text, Loader=yaml.SafeLoader), None
        for key in place:
            pairs = node.value if isinstance(node, yaml.MappingNode) else ()
            found = next((pair for pair in pairs if pair[0].value == key), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        return line

    def path(self, place: Place, value: str) -> str:
        """Return a path; a relative one begins at the folder of the file. Raises UserError."""
        try:
            # without `..`: a server compares policy_root with the path of its policy
            return normpath((self.folder / expanded(value)).absolute())
        except RuntimeError:
            # ~ of a user who does not exist
            text = f'must be a path of a user of this machine, got {value!r}'
            raise self.error(place, text) from None


KEY = 'ros__parameters'


def values_for(file: Path, node: str) -> dict[str, Any]:
    """
    Return the values for the node with this full name; later entries win, as in rcl. Raises
    UserError, also for a file without an entry for the node.
    """
    entries = list(_entries(_content(file), ''))
    fitting = [values for name, values in entries if matches_node(name, node)]
    if not fitting:
        named = ', '.join(name for name, _ in entries) or 'nothing'
        raise UserError(
            f'parameter file {file} has no entry for {node}, only for {named}; correct the name '
            'in the file, or give --name and --namespace'
        )
    found = {name: value for values in fitting for name, value in flattened(values)}
    return {name: value for name, value in found.items() if value != {}}


def flattened(values: dict[str, Any], prefix: str = '') -> Iterator[tuple[str, Any]]:
    """
    Yield name and value of each parameter; {canary: {plan: x}} is canary.plan. An empty mapping
    may be a group or a mistake.
    """
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, f'{prefix}{key}.')
        else:
            yield f'{prefix}{key}', value


def _content(file: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(file.read_text('utf-8'))
    except OSError as error:
        raise UserError(f'parameter file {file}: {error.strerror or error}') from error
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f'parameter file {file}: {" ".join(str(error).split())}') from error


def _entries(content: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each node name of the file with its parameters."""
    if not isinstance(content, dict):
        return
    for key, value in content.items():
        if key != KEY:
            yield from _entries(value, f'{place}/{str(key).strip("/")}')
        elif isinstance(value, dict):
            yield place, value
