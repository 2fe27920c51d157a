# SPDX-License-Identifier: Apache-2.0
"""
Read a file of bounded size, and parse YAML and JSON strictly: a key that is given twice is
refused, as is what a reader does not expect. Each function raises ValueError with the reason. Any
thread.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
import re
import stat
from typing import Any

import yaml

SHOWN_CHARS, PROBLEM_CHARS = 80, 200
# a file of ours has some hundred values; reading this many takes about a second
NESTING_LIMIT, VALUES_LIMIT = 16, 20_000
# sets, dates in other forms and objects are no content of ours
TAGS = frozenset(
    f'tag:yaml.org,2002:{name}'
    for name in ('null', 'bool', 'int', 'float', 'str', 'seq', 'map', 'merge', 'timestamp')
)
# a plain number is equal in every YAML version; 030, 0x1e, 1:30 and 1_000 are not
PLAIN_NUMBER = re.compile(
    r'[-+]?(((0|[1-9]\d*)(\.\d*)?|\.\d+)([eE][-+]?\d+)?|\.(inf|Inf|INF))|\.(nan|NaN|NAN)'
)
DEEP_TEXT = f'nested more than {NESTING_LIMIT} deep'
NUMBERS = ('tag:yaml.org,2002:int', 'tag:yaml.org,2002:float')
EXPONENT = re.compile(r'[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$')


def shown(value: object) -> str:
    """Return the repr of a value for an error text, shortened if long."""
    whole = repr(value)
    if len(whole) <= SHOWN_CHARS:
        return whole
    return f'{whole[:SHOWN_CHARS]}... ({len(whole)} characters)'


def in_one_line(text: str) -> str:
    """Return a text with what is not printable in its escaped form."""
    return ''.join(each if each.isprintable() else repr(each)[1:-1] for each in text)


def read(file: Path, limit_bytes: int, flags: int = 0) -> bytes:
    """
    Return the content of a regular file of at most `limit_bytes`; `flags` as for open(2). A pipe
    would block, and a device has no end.
    """
    try:
        # a pipe without a writer would block here
        handle = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | flags)
        # of a folder, fdopen raises and leaves the handle open
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise ValueError('not a regular file')
        with os.fdopen(handle, 'rb') as opened:
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
        value = json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
        _check_scalars(value, are_finite=True)
        return value
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


def _check_scalars(content: Any, *, are_finite: bool) -> None:
    """Raise ValueError for a lone surrogate in a text, and an infinite number such as 1e999."""
    open_values = [content]
    while open_values:
        value = open_values.pop()
        if isinstance(value, dict):
            open_values += [*value, *value.values()]
        elif isinstance(value, list):
            open_values += value
        elif isinstance(value, float) and are_finite and not math.isfinite(value):
            raise ValueError(f'{value} is not a finite number')
        elif isinstance(value, str) and not value.isascii() and not is_unicode(value):
            raise ValueError(f'{shown(value)} has a lone surrogate, which is not Unicode text')


def is_unicode(text: str) -> bool:
    """Return whether a text can be encoded: it has no lone surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def from_yaml(text: bytes | str, *, aliases: bool = True) -> Any:
    """
    Return the content of a YAML text in UTF-8 without duplicate keys, ambiguous numbers, tags of
    other types, deep nesting and too many values, of which an alias counts as what it names; or
    without any alias.
    """
    loader = None
    try:
        decoded = text.decode() if isinstance(text, bytes) else text
        loader = (_Loader if aliases else _LoaderWithoutAliases)(decoded)
        node = loader.get_single_node()
        _check_size(node)
        content = loader.construct_document(node) if node else None
        _check_scalars(content, are_finite=False)
        return content
    except Exception as error:
        # the library raises its own errors and those of int, dict and datetime
        raise ValueError(f'not YAML ({_in_one_line(error)})') from None
    finally:
        if loader:
            loader.dispose()


def _check_size(root: yaml.Node | None) -> None:
    """Raise ComposerError for too many values and deep nesting; an alias of itself is endless."""
    left, open_nodes = VALUES_LIMIT, [(root, 1)] if root else []
    while open_nodes:
        node, depth = open_nodes.pop()
        left -= 1
        if left < 0 or depth > NESTING_LIMIT:
            what = f'more than {VALUES_LIMIT} values' if left < 0 else DEEP_TEXT
            text = f'{what}; an alias counts as what it names'
            raise yaml.composer.ComposerError(problem=text, problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            open_nodes += [(each, depth + 1) for pair in node.value for each in pair]
        elif isinstance(node, yaml.SequenceNode):
            open_nodes += [(each, depth + 1) for each in node.value]


def _check_keys(node: yaml.MappingNode) -> None:
    """Raise ComposerError for a key that is given twice."""
    seen = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in seen:
            text = f'duplicate {shown(key.value)}'
            raise yaml.composer.ComposerError(problem=text, problem_mark=key.start_mark)
        seen.add(key.value)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """
    YAML loader that rejects duplicate keys, of which one would be ignored, numbers that are not
    plain decimals (YAML 1.1 reads 030 as 24 and 1:30 as 90), tags of other types than those of
    JSON (a set has no order), and content that is large or nested deeply.
    """

    _depth = _values = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self._depth == NESTING_LIMIT:
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(problem=DEEP_TEXT, problem_mark=mark)
        self._depth += 1
        self._values += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        if node and (node.tag not in TAGS or self._values > VALUES_LIMIT):
            text = f'more than {VALUES_LIMIT} values'
            if node.tag not in TAGS:
                text = f'the tag {shown(node.tag)} is not allowed; write it without'
            raise yaml.composer.ComposerError(problem=text, problem_mark=node.start_mark)
        if isinstance(node, yaml.MappingNode):
            # before `<<` adds the keys of others
            _check_keys(node)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        is_number = isinstance(node, yaml.ScalarNode) and node.tag in NUMBERS
        if is_number and not PLAIN_NUMBER.fullmatch(node.value):
            given, read_as = shown(node.value)[1:-1], 'another number'
            # sixties of many digits take minutes
            if len(node.value) <= SHOWN_CHARS:
                read_as = shown(super().construct_object(node, deep))
            text = f'{given} is ambiguous (YAML 1.1 reads {read_as}); write it as a plain decimal'
            raise yaml.constructor.ConstructorError(problem=text, problem_mark=node.start_mark)
        return super().construct_object(node, deep)


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
    text = in_one_line(text[:PROBLEM_CHARS])
    return f'line {mark.line + 1}, column {mark.column + 1}: {text}' if mark else text
