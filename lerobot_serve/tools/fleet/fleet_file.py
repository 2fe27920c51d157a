# SPDX-License-Identifier: Apache-2.0
"""Read a fleet file: its values, and the line of each key for errors. Pure; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import yaml

from lerobot_serve.errors import UserError
from lerobot_serve.parameters import closest_name

Place = tuple[str, ...]
# the one in C is ten times as fast, where it is installed
LOADER: Any = getattr(yaml, 'CSafeLoader', yaml.SafeLoader)
MERGE = '<<'
# a fleet of 200 robots with 20 keys each has 4000 lines
TEXT_LIMIT, VALUES_LIMIT, DEPTH_LIMIT = 4_000_000, 200_000, 20


@dataclass(frozen=True, slots=True)
class FleetFile:
    """The content of a fleet file, and the line of each place in it."""

    name: str
    content: dict[str, Any]
    lines: dict[Place, int]

    def error(self, place: Place, text: str) -> UserError:
        """Return an error about a place, with the file, its line and the path of keys."""
        line = self.line(place)
        where = f'{self.name}:{line}' if line else self.name
        return UserError(f'{where}: {".".join(place)}{": " if place else ""}{text}')

    def line(self, place: Place) -> int | None:
        """Return the line of a place, or of the one around it."""
        return self.lines.get(place) or self.lines.get(place[:-1])

    def section(self, place: Place, value: Any) -> dict[str, Any]:
        """Return a mapping, empty for nothing after the colon. Raises UserError."""
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.error(place, f'must be a mapping of keys and values, got {value!r}')
        return value

    def check_keys(self, place: Place, given: Iterable[str], known: Iterable[str]) -> None:
        """Raise UserError for an unknown key, with the nearest known one."""
        known = list(known)
        for key in given:
            if key in known:
                continue
            near = closest_name(key, known)
            hint = f'did you mean {near}?' if near else f'there are {", ".join(known)}'
            raise self.error((*place, key), f'is not known here; {hint}')

    def text(self, place: Place, value: Any) -> str:
        """Return a text. Raises UserError."""
        if not isinstance(value, str) or not value:
            raise self.error(place, f'must be a text, got {value!r}')
        return value

    def whole(self, place: Place, value: Any, *, low: int, high: int) -> int:
        """Return an integer within bounds. Raises UserError."""
        if type(value) is not int or not low <= value <= high:
            raise self.error(place, f'must be an integer in [{low}, {high}], got {value!r}')
        return value


def read_fleet(text: str, name: str) -> FleetFile:
    """Return the fleet file with this text. Raises UserError."""
    if len(text) > TEXT_LIMIT:
        raise UserError(f'{name}: must have at most {TEXT_LIMIT} characters, got {len(text)}')
    lines: dict[Place, int] = {}
    try:
        loader, root = compose(text)
        if root:
            check_size(root, name)
            note_lines(root, (), lines, name)
        content = loader.construct_document(root) if root else None
    except yaml.MarkedYAMLError as error:
        line = f':{error.problem_mark.line + 1}' if error.problem_mark else ''
        raise UserError(f'{name}{line}: not valid YAML: {error.problem}') from error
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f'{name}: not valid YAML: {" ".join(str(error).split())}') from error
    except RecursionError as error:
        raise UserError(f'{name}: is nested too deeply') from error
    if not isinstance(content, dict) or not content:
        raise UserError(f'{name}: must have servers, router or robots, got {content!r:.80}')
    return FleetFile(name, as_text_keys(content), lines)


def compose(text: str) -> tuple[Any, Any]:
    """
    Return the loader and the root node, None for an empty file. Raises YAMLError, and
    RecursionError for a file that is nested too deeply.
    """
    try:
        check_depth(text)
        loader = LOADER(text)
        return loader, loader.get_single_node()
    except yaml.YAMLError:
        # its errors have better lines
        loader = yaml.SafeLoader(text)
        return loader, loader.get_single_node()


def check_depth(text: str) -> None:
    """
    Raise RecursionError for a text that is nested too deeply: composing it would end the process.
    """
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_LIMIT:
            raise RecursionError


def as_text_keys(value: Any) -> Any:
    """Return the value with the keys of all mappings as text."""
    if isinstance(value, dict):
        return {str(key): as_text_keys(each) for key, each in value.items()}
    return value


def check_size(root: Any, name: str) -> None:
    """
    Raise UserError for a file that is nested too deeply, or has too many values once each alias
    stands for what it names; an alias of itself is endless.
    """
    left, open_nodes = VALUES_LIMIT, [(root, 0)]
    while open_nodes:
        node, depth = open_nodes.pop()
        left -= 1
        if depth > DEPTH_LIMIT or left < 0:
            line = node.start_mark.line + 1
            what = 'is nested too deeply' if depth > DEPTH_LIMIT else 'has too many values'
            raise UserError(f'{name}:{line}: {what}; an alias counts as what it names')
        if isinstance(node, yaml.MappingNode):
            open_nodes += [(each, depth + 1) for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            open_nodes += [(each, depth + 1) for each in node.value]


def note_lines(node: Any, place: Place, lines: dict[Place, int], name: str) -> None:
    """Note the line of each key. Raises UserError for a key that is there twice."""
    if not isinstance(node, yaml.MappingNode):
        return
    own: dict[str, int] = {}
    for key, value in node.value:
        text, line = str(key.value), key.start_mark.line + 1
        if text in own and text != MERGE:
            where = f'{name}:{own[text]}: {".".join((*place, text))}'
            raise UserError(f'{where}: is given twice, also in line {line}; remove one')
        own[text] = line
        lines.setdefault((*place, text), line)
        note_lines(value, (*place, text), lines, name)
