# SPDX-License-Identifier: Apache-2.0
"""One mapping of a robot file, with validated access to its values."""

from __future__ import annotations

from pathlib import Path
import re
from typing import Any, TypeGuard

import yaml

from lerobot_serve.contract.limits import ID_LIMIT

TOPIC = re.compile(r'(/|~/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*')
MAX_SHOWN_CHARS = 80
# limits for a URDF, and for a robot file: the longest that comes with the package has 4600 bytes
URDF_BYTES_LIMIT, ROBOT_BYTES_LIMIT = 16 << 20, 64 << 10
# of a robot file, which needs 4
NESTING_LIMIT = 16
# a plain number is equal in every YAML version; 030, 0x1e, 1:30 and 1_000 are not
PLAIN_NUMBER = re.compile(
    r'[-+]?(((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)'
)
NUMBERS = ('tag:yaml.org,2002:int', 'tag:yaml.org,2002:float')
EXPONENT = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$')


class RobotFileError(ValueError):
    """Invalid robot file; the text names the place, the given value and what is allowed."""


def full_type(kind: str) -> str:
    """Return the name that ROS has for a type of a robot file: package/msg/Message."""
    return '/msg/'.join(kind.split('/'))


class YamlMapping:
    """A mapping of the file. Every method raises RobotFileError."""

    def __init__(self, content: Any, place: str, keys: str) -> None:
        """`keys` are the allowed keys, separated by spaces."""
        listed = keys.replace(' ', ', ')
        if not isinstance(content, dict):
            raise RobotFileError(f'{place}: expected {listed}, got {shortened(content)}')
        unknown = [key for key in content if key not in keys.split()]
        if unknown:
            raise RobotFileError(f'{place}: unknown {shortened(unknown[0])}; allowed are {listed}')
        self._content, self.place = content, place

    def __contains__(self, key: str) -> bool:
        return key in self._content

    def need(self, key: str) -> Any:
        if key not in self._content:
            raise RobotFileError(f'{self.place}: {key} is missing')
        return self._content[key]

    def text(self, key: str) -> str:
        return text(self.need(key), f'{self.place}: {key}')

    def topic(self, key: str) -> str:
        value = self.text(key)
        if not TOPIC.fullmatch(value) or '__' in value:
            raise RobotFileError(
                f'{self.place}: {key} must be the name of a topic like joint_states or '
                f'/arm/joint_states, got {shortened(value)}'
            )
        return value

    def number(
        self, key: str, low: float, high: float, default: float | None = None, why: str = ''
    ) -> float:
        """Return a number in [low, high]; `why` names the origin of these bounds."""
        if key not in self._content and default is not None:
            return default
        return number(self.need(key), low, high, f'{self.place}: {key}', why)

    def choice(self, key: str, allowed: list[str], default: str) -> str:
        value: str = self._content.get(key, default)
        if value not in allowed:
            raise RobotFileError(
                f'{self.place}: {key} must be one of {", ".join(allowed)}, got {shortened(value)}'
            )
        return value

    def flag(self, key: str) -> bool:
        """Return true or false; false if missing."""
        value = self._content.get(key, False)
        if type(value) is not bool:
            raise RobotFileError(
                f'{self.place}: {key} must be true or false, got {shortened(value)}'
            )
        return value

    def message_type(self, allowed: list[str], default: str) -> str:
        """Return `type` as package/Message, also for package/msg/Message."""
        written = self._content.get('type', default)
        kind = written.replace('/msg/', '/') if isinstance(written, str) else written
        if kind not in allowed:
            raise RobotFileError(
                f'{self.place}: type must be one of {", ".join(allowed)}, got {shortened(written)}'
            )
        return kind

    def names(self, key: str, allowed: list[str] | None = None) -> tuple[str, ...]:
        """Return a list of unique names."""
        value = self.need(key)
        if not isinstance(value, list) or not value or not all(map(is_name, value)):
            raise RobotFileError(
                f'{self.place}: {key} must be a list of names, got {shortened(value)}'
            )
        refuse_duplicates(value, f'{self.place}: {key}')
        for name in value:
            if allowed and name not in allowed:
                raise RobotFileError(
                    f'{self.place}: {key} must be among {", ".join(allowed)}, got {name!r}'
                )
        return tuple(value)


def shortened(value: object) -> str:
    """Return the repr of a value for an error text, truncated if long."""
    whole = repr(value)
    return (
        whole
        if len(whole) <= MAX_SHOWN_CHARS
        else f'{whole[:MAX_SHOWN_CHARS]}... ({len(whole)} characters)'
    )


def text(value: object, what: str) -> str:
    """Return a name. Raises RobotFileError, which calls the value `what`."""
    if not is_name(value):
        raise RobotFileError(
            f'{what} must be a text of at most {ID_LIMIT} bytes, got {shortened(value)}'
        )
    return value


def number(value: Any, low: float, high: float, what: str, why: str = '') -> float:
    """Return a number in [low, high]. Raises RobotFileError, which calls the value `what`."""
    if type(value) not in (int, float) or value != value:
        raise RobotFileError(f'{what} must be a number, got {shortened(value)}')
    if not low <= value <= high:
        raise RobotFileError(f'{what} must be in [{low:g}, {high:g}]{why}, got {value}')
    return float(value)


def is_name(value: object) -> TypeGuard[str]:
    return (
        isinstance(value, str)
        and bool(value.strip())
        and value.isprintable()
        and len(value.encode()) <= ID_LIMIT
    )


def named_entries(content: Any, place: str) -> list[tuple[str, Any, str]]:
    """Return name, content and place of each entry of a mapping. Raises RobotFileError."""
    if not isinstance(content, dict) or not all(map(is_name, content)):
        raise RobotFileError(
            f'{place}: expected names with their settings, got {shortened(content)}'
        )
    return [(name, value, f'{place}: {name}') for name, value in content.items()]


def refuse_duplicates(names: list[str] | tuple[str, ...], place: str) -> None:
    """Raise RobotFileError for a duplicate name."""
    for name in names:
        if names.count(name) > 1:
            raise RobotFileError(f'{place}: duplicate {name!r}')


def read_text(path: Path, limit: int) -> str:
    """
    Read a text file of at most `limit` bytes. Raises RobotFileError, also for a pipe, which would
    block, or a device, which never ends. Raises UnicodeDecodeError.
    """
    try:
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise RobotFileError(f'{path}: not a regular file')
        with path.open('rb') as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise RobotFileError(f'{path}: cannot be read ({error.strerror})') from None
    if len(data) > limit:
        raise RobotFileError(f'{path}: larger than {limit >> 10} KiB')
    return data.decode()


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file. Raises RobotFileError."""
    try:
        return parse_yaml(read_text(path, ROBOT_BYTES_LIMIT), str(path))
    except UnicodeDecodeError as error:
        raise RobotFileError(f'{path}: not YAML ({_in_one_line(error)})') from None


def parse_yaml(text: str, place: str) -> Any:
    """Return the content of a text in YAML. Raises RobotFileError, which names `place`."""
    return _parse(text, place, _Loader)


def parse_received_yaml(text: str, place: str) -> Any:
    """
    Return the content of a text in YAML that others sent: it is small, and has no aliases, with
    which a short text is a content of any size. Raises RobotFileError, which names `place`.
    """
    size = len(text.encode(errors='replace'))
    if size > ROBOT_BYTES_LIMIT:
        raise RobotFileError(f'{place}: {size} bytes, at most {ROBOT_BYTES_LIMIT} are allowed')
    return _parse(text, place, _ReceivedLoader)


def _parse(text: str, place: str, loader: type[_Loader]) -> Any:
    try:
        return yaml.load(text, loader)
    except Exception as error:
        # the library raises its own errors and those of int, dict and datetime
        raise RobotFileError(f'{place}: not YAML ({_in_one_line(error)})') from None


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """
    YAML loader that rejects duplicate keys, of which one would be ignored, numbers that are not
    plain decimals (YAML 1.1 reads 030 as 24 and 1:30 as 90), and content that is nested deeply.
    """

    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth == NESTING_LIMIT:
            mark = self.peek_event().start_mark
            text = f'nested more than {NESTING_LIMIT} deep'
            raise yaml.composer.ComposerError(problem=text, problem_mark=mark)
        self._depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        is_number = isinstance(node, yaml.ScalarNode) and node.tag in NUMBERS
        if is_number and not PLAIN_NUMBER.fullmatch(node.value):
            value = super().construct_object(node, deep)
            given, read_as = shortened(node.value)[1:-1], shortened(value)
            text = f'{given} is ambiguous (YAML 1.1 reads {read_as}); write it as a plain decimal'
            raise yaml.constructor.ConstructorError(problem=text, problem_mark=node.start_mark)
        return super().construct_object(node, deep)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                text = f'duplicate {shortened(key.value)}'
                raise yaml.constructor.ConstructorError(problem=text, problem_mark=key.start_mark)
            seen.add(key.value)
        mapping: dict[object, Any] = super().construct_mapping(node, deep)
        return mapping


# YAML 1.1 reads 1e-3 as text, unlike YAML 1.2
_Loader.add_implicit_resolver('tag:yaml.org,2002:float', EXPONENT, list('-+.0123456789'))


class _ReceivedLoader(_Loader):
    """YAML loader that rejects aliases, too."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            text = f'alias *{shortened(event.anchor)[1:-1]}; write out what it stands for'
            raise yaml.composer.ComposerError(problem=text, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


def _in_one_line(error: Exception) -> str:
    mark = getattr(error, 'problem_mark', None)
    text = getattr(error, 'problem', None) or (str(error).splitlines() or ['nested too deep'])[0]
    return f'line {mark.line + 1}, column {mark.column + 1}: {text}' if mark else text
