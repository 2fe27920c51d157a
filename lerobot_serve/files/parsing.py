# SPDX-License-Identifier: Apache-2.0
"""
Read a file of bounded size, and parse YAML and JSON strictly: a key that is given twice is
refused, as is what a reader does not expect. Each function raises ValueError with the reason. Any
thread.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import re
import stat
from typing import Any

import yaml

SHOWN_CHARS, NESTING_LIMIT, VALUES_LIMIT = 80, 16, 200_000
# a plain number is equal in every YAML version; 030, 0x1e, 1:30 and 1_000 are not
PLAIN_NUMBER = re.compile(
    r'[-+]?(((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)'
)
NUMBERS = ('tag:yaml.org,2002:int', 'tag:yaml.org,2002:float')
EXPONENT = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$')


def shown(value: object) -> str:
    """Return the repr of a value for an error text, shortened if long."""
    whole = repr(value)
    if len(whole) <= SHOWN_CHARS:
        return whole
    return f'{whole[:SHOWN_CHARS]}... ({len(whole)} characters)'


def read(file: Path, limit_bytes: int, flags: int = 0) -> bytes:
    """
    Return the content of a regular file of at most `limit_bytes`; `flags` as for open(2). A pipe
    would block, and a device has no end.
    """
    try:
        # a pipe without a writer would block here
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
        with os.fdopen(handle, 'rb') as opened:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ValueError('not a regular file')
            data = opened.read(limit_bytes + 1)
    except OSError as error:
        raise ValueError(f'cannot be read ({error.strerror or error})') from None
    if len(data) > limit_bytes:
        raise ValueError(f'larger than {limit_bytes >> 10} KiB')
    return data


def from_json(data: bytes | str) -> Any:
    """Return the value of a JSON text with finite numbers and each name once."""
    try:
        text = data.decode() if isinstance(data, bytes) else data
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f'not JSON ({_in_one_line(error)})') from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f'duplicate {shown(twice)}')
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f'{name} is not a finite number')


def from_yaml(text: bytes | str, *, aliases: bool = True) -> Any:
    """
    Return the content of a YAML text without duplicate keys, ambiguous numbers, deep nesting and
    too many values, of which an alias counts as what it names; or without any alias.
    """
    loader = None
    try:
        loader = (_Loader if aliases else _LoaderWithoutAliases)(text)
        node = loader.get_single_node()
        _check_size(node)
        return loader.construct_document(node) if node else None
    except Exception as error:
        # the library raises its own errors and those of int, dict and datetime
        raise ValueError(f'not YAML ({_in_one_line(error)})') from None
    finally:
        if loader:
            loader.dispose()


def _check_size(root: yaml.Node | None) -> None:
    """Raise ComposerError for too many values; an alias of itself is endless."""
    left, open_nodes = VALUES_LIMIT, [root] if root else []
    while open_nodes:
        node = open_nodes.pop()
        left -= 1
        if left < 0:
            text = f'more than {VALUES_LIMIT} values; an alias counts as what it names'
            raise yaml.composer.ComposerError(problem=text, problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            open_nodes += [each for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            open_nodes += node.value


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
            given, read_as = shown(node.value)[1:-1], shown(value)
            text = f'{given} is ambiguous (YAML 1.1 reads {read_as}); write it as a plain decimal'
            raise yaml.constructor.ConstructorError(problem=text, problem_mark=node.start_mark)
        return super().construct_object(node, deep)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            if key.value in seen:
                text = f'duplicate {shown(key.value)}'
                raise yaml.constructor.ConstructorError(problem=text, problem_mark=key.start_mark)
            seen.add(key.value)
        mapping: dict[object, Any] = super().construct_mapping(node, deep)
        return mapping


# YAML 1.1 reads 1e-3 as text, unlike YAML 1.2
_Loader.add_implicit_resolver('tag:yaml.org,2002:float', EXPONENT, list('-+.0123456789'))


class _LoaderWithoutAliases(_Loader):
    """YAML loader that rejects aliases, too."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()
            text = f'alias *{shown(event.anchor)[1:-1]}; write out what it stands for'
            raise yaml.composer.ComposerError(problem=text, problem_mark=event.start_mark)
        return super().compose_node(parent, index)


def _in_one_line(error: Exception) -> str:
    mark = getattr(error, 'problem_mark', None)
    text = getattr(error, 'problem', None) or ' '.join(str(error).split()) or 'nested too deep'
    return f'line {mark.line + 1}, column {mark.column + 1}: {text}' if mark else text[:200]
