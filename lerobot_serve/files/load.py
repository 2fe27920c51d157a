# SPDX-License-Identifier: Apache-2.0
"""
Make a record of the content of a file, or say what is wrong with it. Any thread.

A record is a msgspec Struct: types and Meta are its bounds, `__post_init__` has the rules between
fields and raises ValueError. What Meta cannot express is a function, see `rule`. Where msgspec
refuses a content, it is walked for the first place that is refused, with a text for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, get_args, get_origin, Literal, NamedTuple, TypeVar, Union

import msgspec
from msgspec import Meta, Struct, UnsetType

from lerobot_serve.files.parsing import from_json, in_one_line, read, shown
from lerobot_serve.parameters import closest_name

T = TypeVar('T')
Place = tuple[str | int, ...]
FILE_LIMIT_BYTES = 1 << 20
WORDS: dict[Any, str] = {
    bool: 'true or false',
    int: 'a whole number',
    float: 'a number',
    NoneType: 'null',
    Any: 'any value',
}


class Record(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A group of fields in a file; one that it does not have is refused."""


class Fault(NamedTuple):
    """The first place of a content that is refused: where, what was given, and why."""

    path: Place
    given: object
    text: str
    allowed: str = ''


class Refused(ValueError):
    """A file is refused: the text has its name, the place in it, the value and what is allowed."""

    def __init__(self, place: str, reason: str | Fault) -> None:
        fault = reason if isinstance(reason, Fault) else Fault((), None, reason)
        words = _words(fault.path)
        field = f'{words.pop()} ' if fault.allowed and words else ''
        text = ': '.join(filter(None, [place, *words, f'{field}{fault.text}']))
        super().__init__(in_one_line(text))
        self.fault = fault


def rule(fits: Callable[[Any], bool], allowed: str, **bounds: Any) -> Meta:
    """Return a bound that a function decides once the type and the other `bounds` fit."""
    return Meta(description=allowed, extra={'fits': fits}, **bounds)


def text_of(limit_bytes: int) -> Meta:
    """Return the bound of a text in UTF-8."""

    def fits(text: str) -> bool:
        return len(text.encode(errors='surrogatepass')) <= limit_bytes

    return rule(fits, f'a text of at most {limit_bytes} bytes')


def load(kind: type[T], content: Any, place: str) -> T:
    """Return the record of a content; `place` is the file, for the text. Raises Refused."""
    # for mypy, a class is not hashable
    whole: Any = kind
    try:
        record = msgspec.convert(content, kind)
    except msgspec.ValidationError as error:
        found = _find(kind, content, ()) or Fault((), content, str(error))
        raise Refused(place, found) from None
    if _has_rules(whole) and (found_rule := _find(kind, content, ())):
        raise Refused(place, found_rule)
    return record


def load_file(
    kind: type[T],
    file: Path,
    parse: Callable[[bytes], Any] = from_json,
    limit_bytes: int = FILE_LIMIT_BYTES,
) -> T:
    """Return the record in a file of bounded size. Raises Refused."""
    return load(kind, parsed(file, parse, limit_bytes), str(file))


def parsed(file: Path, parse: Callable[[bytes], Any], limit_bytes: int = FILE_LIMIT_BYTES) -> Any:
    """Return the content of a file of bounded size. Raises Refused."""
    try:
        return parse(read(file, limit_bytes))
    except ValueError as error:
        raise Refused(str(file), str(error)) from None


@cache
def _has_rules(kind: Any) -> bool:
    bare, metas = _unwrapped(kind)
    parts = _fields(bare).values() if _is_record(bare) else get_args(bare)
    return any(meta.extra for meta in metas) or any(map(_has_rules, parts))


def _find(kind: Any, value: Any, path: Place) -> Fault | None:
    """Return the first place in a value that is refused."""
    bare, metas = _unwrapped(kind)
    if get_origin(bare) in (Union, UnionType):
        if fault := _of_tag(bare, value, path):
            return fault
        bare, metas = _unwrapped(_member(bare, value))
    if _is_record(bare) and isinstance(value, dict) and (fault := _of_names(bare, value, path)):
        return fault
    if get_origin(bare) is dict and isinstance(value, dict):
        key = get_args(bare)[0]
        for name in value:
            if _find(key, name, ()):
                text = f'the name {shown(name)} must be {allowed(key)}'
                return Fault(path, name, text)
    if get_origin(bare) in (list, tuple) and not isinstance(value, list):
        # msgspec takes a set, too
        return _wrong(kind, value, path)
    for part, each, where in _parts(bare, value):
        if fault := _find(part, each, (*path, where)):
            return fault
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        if _is_record(bare) and isinstance(value, dict):
            # of a rule between fields
            return Fault(path, value, str(error))
        return _wrong(kind, value, path)
    rules = [meta.extra['fits'] for meta in metas if meta.extra]
    return None if all(fits(value) for fits in rules) else _wrong(kind, value, path)


def _wrong(kind: Any, value: Any, path: Place) -> Fault:
    text = allowed(kind)
    return Fault(path, value, f'must be {text}, got {shown(value)}', text)


def _of_names(kind: Any, value: dict[Any, Any], path: Place) -> Fault | None:
    """Return a field that is unknown or missing."""
    known, config = _fields(kind), kind.__struct_config__
    names = [*known, *([config.tag_field] if config.tag_field else [])]
    for name in value:
        if name not in names and config.forbid_unknown_fields:
            near = closest_name(str(name)[:80], names)
            hint = f'did you mean {near}?' if near else f'allowed are {", ".join(names)}'
            text = f'unknown field {shown(name)}; {hint}'
            return Fault(path, name, text)
    for field in msgspec.structs.fields(kind):
        if field.required and field.encode_name not in value:
            text = f'is missing; it must be {allowed(field.type)}'
            return Fault((*path, field.encode_name), None, text, text)
    return None


def _of_tag(union: Any, value: Any, path: Place) -> Fault | None:
    """Return the tag of a record that is none of a union of records."""
    records = _records(union)
    if not isinstance(value, dict) or not records or not records[0].__struct_config__.tag_field:
        return None
    name, tags = records[0].__struct_config__.tag_field, [*map(_tag, records)]
    if value.get(name) in tags:
        return None
    text = f'one of {", ".join(map(str, tags))}'
    given = value.get(name)
    return Fault((*path, name), given, f'must be {text}, got {shown(given)}', text)


def _records(union: Any) -> list[Any]:
    return [bare for each in get_args(union) if _is_record(bare := _unwrapped(each)[0])]


def _tag(record: Any) -> Any:
    return record.__struct_config__.tag


def _parts(kind: Any, value: Any) -> Iterator[tuple[Any, Any, str | int]]:
    """Yield the parts of a record, list or mapping: type, value, and where it is."""
    if isinstance(value, dict) and _is_record(kind):
        for name, part in _fields(kind).items():
            if name in value:
                yield part, value[name], name
    elif isinstance(value, dict) and get_origin(kind) is dict:
        for name, each in value.items():
            yield get_args(kind)[1], each, str(name)
    elif isinstance(value, list) and get_origin(kind) in (list, tuple):
        of_each = [each for each in get_args(kind) if each is not ...]
        for number, each in enumerate(value):
            yield of_each[min(number, len(of_each) - 1)], each, number


def _member(union: Any, value: Any) -> Any:
    """Return the type of a union that a value means: by its tag, else by what it is made of."""
    members, records = get_args(union), _records(union)
    if isinstance(value, dict) and records:
        tag_field = records[0].__struct_config__.tag_field
        return next((each for each in records if _tag(each) == value.get(tag_field)), records[0])
    kinds = {get_origin(bare) or bare: each for each in members for bare in _unwrapped(each)[:1]}
    return kinds.get(tuple if isinstance(value, list) else type(value), union)


def allowed(kind: Any) -> str:
    """Return what a type allows, in words."""
    bare, metas = _unwrapped(kind)
    if described := [meta.description for meta in metas if meta.description]:
        return described[-1]
    origin, args = get_origin(bare), get_args(bare)
    if origin is Literal:
        return ' or '.join(map(shown, args))
    if origin in (Union, UnionType):
        return ' or '.join(map(allowed, args))
    if origin in (list, tuple):
        is_fixed = origin is tuple and args[-1] is not ...
        count = f' of {len(args)}' if is_fixed else _lengths(metas, '')
        return f'a list{count}, each {allowed(args[0])}'
    if origin is dict:
        return f'a mapping from names to {allowed(args[1])}'
    if _is_record(bare):
        return f'a group of {", ".join(_fields(bare))}'
    if bare is str:
        return f'a text{_lengths(metas, " characters")}'
    return f'{WORDS[bare]}{_bounds(metas)}'


def _bounds(metas: tuple[Meta, ...]) -> str:
    above, low, high = (_last(metas, name) for name in ('gt', 'ge', 'le'))
    if above is not None:
        return f' above {above:g}' + ('' if high is None else f' and at most {high:g}')
    return _range(low, high, ' from {:g} to {:g}', '')


def _lengths(metas: tuple[Meta, ...], unit: str) -> str:
    low, high = _last(metas, 'min_length'), _last(metas, 'max_length')
    return _range(low, high, ' of {:g}' if low == high else ' of {:g} to {:g}', unit)


def _range(low: float | None, high: float | None, both: str, unit: str) -> str:
    if low is not None and high is not None:
        return both.format(low, high) + unit
    if low is None and high is None:
        return ''
    return (f' of at most {high:g}' if low is None else f' of at least {low:g}') + unit


def _last(metas: tuple[Meta, ...], name: str) -> float | None:
    """Return a bound that the annotations of a type have."""
    return next((found for meta in metas if (found := getattr(meta, name)) is not None), None)


def _unwrapped(kind: Any) -> tuple[Any, tuple[Meta, ...]]:
    """Return a type without its annotations, and these; a field may be left out (UnsetType)."""
    if UnsetType in get_args(kind):
        kind = Union[tuple(each for each in get_args(kind) if each is not UnsetType)]  # noqa: UP007
    if get_origin(kind) is Annotated:
        bare, *metas = get_args(kind)
        return bare, tuple(each for each in metas if isinstance(each, Meta))
    return kind, ()


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


@cache
def _fields(kind: Any) -> dict[str, Any]:
    return {field.encode_name: field.type for field in msgspec.structs.fields(kind)}


def _words(path: Place) -> list[str]:
    """Return a path for people: names, and places of lists from 0 behind their names."""
    words: list[str] = []
    for part in path:
        if isinstance(part, int) and words:
            words[-1] += f'[{part}]'
        else:
            words.append(f'[{part}]' if isinstance(part, int) else part)
    return words
