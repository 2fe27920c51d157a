# SPDX-License-Identifier: Apache-2.0
"""Records of files: each refusal has its place, the value, and what is allowed."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct, UNSET, UnsetType
import pytest

from lerobot_serve.files.load import allowed, load, load_file, Record, Refused, rule
from lerobot_serve.files.parsing import from_json, from_yaml, read, VALUES_LIMIT

Size = Annotated[int, Meta(ge=1, le=9)]
Word = Annotated[str, rule(str.isprintable, 'a word', min_length=1)]
Names = Annotated[
    tuple[Word, ...], rule(lambda names: len({*names}) == len(names), 'different names')
]


class Square(Struct, frozen=True, tag_field='form', tag='square', forbid_unknown_fields=True):
    side: Size


class Circle(Struct, frozen=True, tag_field='form', tag='circle', forbid_unknown_fields=True):
    radius: Annotated[float, Meta(gt=0, le=2)]


class File(Record, frozen=True):
    version: Literal[1]
    names: Names
    shapes: tuple[Square | Circle, ...] = ()
    sizes: dict[Word, Size] = {}
    corner: tuple[float, float] | UnsetType = UNSET
    title: Word | None = None
    is_open: bool = False

    def __post_init__(self) -> None:
        if self.is_open and not self.title:
            raise ValueError('title is missing of an open one')


WHOLE: dict[str, Any] = {
    'version': 1,
    'names': ['a', 'b'],
    'shapes': [{'form': 'square', 'side': 3}, {'form': 'circle', 'radius': 1}],
    'sizes': {'x': 1},
    'corner': [0, 1.5],
    'title': 'one',
    'is_open': True,
}
REFUSALS = [
    ('whole', [1], 'must be a group of version, names, shapes, sizes, corner, title, is_open'),
    ('version', 2, 'version must be 1, got 2'),
    ('version', True, 'version must be 1, got True'),
    ('names', None, 'names must be different names, got None'),
    ('names', ['a', 'a'], "names must be different names, got ['a', 'a']"),
    ('names', ['a', 7], 'names[1] must be a word, got 7'),
    ('names', ['a', '\r'], "names[1] must be a word, got '\\r'"),
    ('shapes', [{'side': 1}], 'shapes[0]: form must be one of square, circle, got None'),
    ('shapes', [{'form': []}], 'shapes[0]: form must be one of square, circle, got []'),
    ('shapes', [{'form': 'square'}], 'shapes[0]: side is missing; it must be a whole number from'),
    ('shapes', [{'form': 'circle', 'radius': 0}], 'radius must be a number above 0 and at most 2'),
    ('shapes', [{'form': 'circle', 'side': 1}], "shapes[0]: unknown field 'side'; allowed are"),
    ('sizes', {'x': 1.0}, 'sizes: x must be a whole number from 1 to 9, got 1.0'),
    ('sizes', {'x\n': 0}, "sizes: the name 'x\\n' must be a word"),
    ('sizes', {3: 1}, 'sizes: the name 3 must be a word'),
    ('corner', [1], 'corner must be a list of 2, each a number, got [1]'),
    ('corner', None, 'corner must be a list of 2, each a number, got None'),
    ('title', '', "title must be a word or null, got ''"),
    ('title', None, 'f: title is missing of an open one'),
    ('is_open', 1, 'is_open must be true or false, got 1'),
    ('tittle', 'x', "unknown field 'tittle'; did you mean title?"),
    ('other', 'x' * 1000, "unknown field 'other'; allowed are version, names"),
    ('names', ['x' * 1000] * 2, '... (2008 characters)'),
]


@pytest.mark.parametrize(('key', 'value', 'text'), REFUSALS)
def test_a_refusal_is_one_line_with_its_place(key, value, text):
    content = value if key == 'whole' else WHOLE | {key: value}
    with pytest.raises(Refused) as refused:
        load(File, content, 'f')
    assert str(refused.value).startswith('f: ') and text in str(refused.value)
    assert str(refused.value).isprintable()


def test_what_is_right_is_a_record():
    assert load(File, WHOLE, 'f').shapes == (Square(3), Circle(1.0))
    least = load(File, {'version': 1, 'names': []}, 'f')
    assert (least.corner, least.title, least.names) == (UNSET, None, ())


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@given(st.sampled_from([*WHOLE, 'other']), anything)
def test_any_value_is_taken_or_refused_in_one_line(key, value):
    try:
        load(File, WHOLE | {key: value}, 'f')
    except Refused as refused:
        assert str(refused).isprintable()


@pytest.mark.parametrize(
    ('kind', 'text'),
    [
        (Annotated[float, Meta(ge=0)], 'a number of at least 0'),
        (Annotated[int, Meta(le=3)], 'a whole number of at most 3'),
        (Annotated[str, Meta(max_length=3)], 'a text of at most 3 characters'),
        (
            Annotated[list[bool], Meta(min_length=2, max_length=2)],
            'a list of 2, each true or false',
        ),
        (dict[str, int], 'a mapping from names to a whole number'),
        (Literal['a', 1], "'a' or 1"),
    ],
)
def test_what_a_type_allows_in_words(kind, text):
    assert allowed(kind) == text


@pytest.mark.parametrize(
    ('parse', 'text', 'reason'),
    [
        (from_json, '{"a": 1, "a": 2}', "duplicate 'a'"),
        (from_json, '[NaN]', 'NaN is not a finite number'),
        (from_json, '[' * 100_000, 'not JSON'),
        (from_json, b'\xff', 'not JSON'),
        (from_yaml, 'a: 1\na: 2', "line 2, column 1: duplicate 'a'"),
        (from_yaml, 'a: 010', '010 is ambiguous (YAML 1.1 reads 8); write it as a plain decimal'),
        (from_yaml, '[' * 100_000, 'nested more than 16 deep'),
        (from_yaml, '&a [*a]', 'nested more than 16 deep; an alias counts as what it names'),
        (from_yaml, '!!python/object:os.system x', "python/object:os.system' is not allowed"),
        (from_yaml, 'a: !!set {x, y}', "the tag 'tag:yaml.org,2002:set' is not allowed"),
        (from_yaml, f'a: !{"x" * 50_000} 1', 'the tag'),
        (from_yaml, 'a: "\\uD800"', 'has a lone surrogate, which is not Unicode text'),
        (
            from_yaml,
            f'a: {":".join(["1"] * 50_000)}',
            'is ambiguous (YAML 1.1 reads another number)',
        ),
        (from_yaml, f'[{"[]," * 300_000}]', f'more than {VALUES_LIMIT} values'),
        (from_yaml, 'a: 1'.encode('utf-16'), 'not YAML'),
        (from_json, '{"\\ud800": 1}', 'has a lone surrogate, which is not Unicode text'),
        (from_json, '[1e999]', 'inf is not a finite number'),
    ],
)
def test_what_no_reader_would_expect_is_refused(parse, text, reason):
    with pytest.raises(ValueError, match=r'.') as refused:
        parse(text)
    assert reason in str(refused.value) and len(str(refused.value)) < 400


def test_what_is_not_a_list_is_none():
    with pytest.raises(Refused, match='names must be different names'):
        load(File, WHOLE | {'names': {'a', 'b'}}, 'f')


def test_reading_a_folder_keeps_nothing_open(tmp_path):
    before = len(os.listdir('/proc/self/fd'))
    for _ in range(3):
        with pytest.raises(ValueError, match='not a regular file'):
            read(tmp_path, 10)
    assert len(os.listdir('/proc/self/fd')) == before


def test_a_short_text_is_not_a_content_of_any_size():
    rows = ['a0: &a0 [x, x, x, x, x, x, x, x]']
    rows += [f'a{n}: &a{n} [{", ".join([f"*a{n - 1}"] * 8)}]' for n in range(1, 12)]
    with pytest.raises(ValueError, match='an alias counts as what it names'):
        from_yaml('\n'.join(rows))
    assert from_yaml('a: &a [1]\nb: *a') == {'a': [1], 'b': [1]}
    with pytest.raises(ValueError, match=r'alias \*a; write out what it stands for'):
        from_yaml('a: &a [1]\nb: *a', aliases=False)


@pytest.mark.parametrize('kind', ['missing', 'folder', 'pipe', 'large', 'not json'])
def test_a_file_that_is_none_is_named_with_the_reason(tmp_path, kind):
    file = tmp_path / 'file.json'
    if kind == 'folder':
        file.mkdir()
    elif kind == 'pipe':
        os.mkfifo(file)
    elif kind != 'missing':
        file.write_text(' ' * 2048 if kind == 'large' else '{')
    reasons = {
        'missing': 'cannot be read (No such file or directory)',
        'folder': 'not a regular file',
        'pipe': 'not a regular file',
        'large': 'larger than 1 KiB',
        'not json': 'not JSON',
    }
    with pytest.raises(Refused) as refused:
        load_file(File, file, limit_bytes=1024)
    assert str(refused.value).startswith(f'{file}: {reasons[kind]}')
