# SPDX-License-Identifier: Apache-2.0
"""Records as lines: what each holds, what is left out, and what is no line."""

from __future__ import annotations

from base64 import b64decode
import contextlib
from enum import Enum
from hashlib import sha256
import json
import math
import struct

from hypothesis import example, given, settings
from hypothesis import strategies as st
import numpy as np
import pytest
from support.tools.trace_rig import IDS, strict

from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.schema import Codec
from lerobot_serve.trace.format import encoding, records
from lerobot_serve.trace.format.encoding import decode, encode, UnencodableRecord
from lerobot_serve.trace.format.redaction import Redaction

TEXTS = st.text(st.characters(exclude_categories=['Cs']), max_size=12)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    TEXTS,
)
VALUES = st.recursive(
    LEAVES,
    lambda below: st.lists(below, max_size=4) | st.dictionaries(TEXTS, below, max_size=4),
    max_leaves=12,
)
RECORDS = st.dictionaries(TEXTS.filter(lambda key: key != 'not_finite'), VALUES, max_size=6)


def with_null(value):
    if isinstance(value, dict):
        return {key: with_null(below) for key, below in value.items()}
    if isinstance(value, list):
        return [with_null(below) for below in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def holds_not_finite(value):
    if isinstance(value, (dict, list)):
        below = value.values() if isinstance(value, dict) else value
        return any(holds_not_finite(each) for each in below)
    return isinstance(value, float) and not math.isfinite(value)


@settings(max_examples=80)
@example({'': {'0': math.inf}})
@given(RECORDS)
def test_what_is_written_is_what_is_read(content):
    record = content | {'kind': 'any'}
    line = encode(record)
    assert line.endswith(b'\n')
    assert line.count(b'\n') == 1
    read = decode(line)
    assert read == strict(line)
    names = read.pop('not_finite', [])
    assert read == with_null(record)
    assert bool(names) == holds_not_finite(record)
    assert {name.partition('.')[0] for name in names} == {
        key.partition('.')[0] for key, value in record.items() if holds_not_finite(value)
    }


@settings(max_examples=150)
@given(st.lists(st.floats(width=32), max_size=20))
def test_a_float32_comes_back_as_it_was(values):
    actions = np.array(values, np.float32)
    read = decode(encode({'kind': 'executed', 'raw': actions}))['raw']
    finite = np.isfinite(actions)
    assert [value is None for value in read] == [not flag for flag in finite]
    back = np.array([value for value in read if value is not None], np.float32)
    assert back.tobytes() == actions[finite].tobytes()


@settings(max_examples=150)
@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float32_has_no_more_digits_than_it_needs(value):
    text = encode({'kind': 'x', 'v': np.float32(value)})
    (read,) = (strict(text)['v'],)
    digits = len(f'{read!r}'.partition('e')[0].strip('-').replace('.', '').strip('0'))
    shorter = f'{value:.{max(digits - 2, 0)}e}'
    assert digits <= 9
    if digits > 1 and abs(float(shorter)) < 3.4e38:
        assert struct.pack('f', float(shorter)) != struct.pack('f', value)


def test_one_tenth_is_written_as_one_tenth():
    line = encode(
        {'kind': 'x', 'raw': np.array([[0.1], [-0.0]], np.float32), 'one': np.float32(0.1)}
    )
    assert line == b'{"kind":"x","raw":[[0.1],[-0.0]],"one":0.1}\n'


def test_what_is_not_finite_is_named():
    record = {
        'kind': 'executed',
        'raw': np.array([1, np.nan, np.inf], np.float32),
        'age_s': math.inf,
        'commanded': np.array([1.5, 2.5]),
        'parameters': {'gain': [1.0, -math.inf], 'well': 1.0},
        'one': np.float32('nan'),
    }
    read = strict(encode(record))
    assert read['not_finite'] == ['age_s', 'one', 'parameters.gain', 'raw']
    assert (read['raw'], read['age_s'], read['one']) == ([1.0, None, None], None, None)
    assert read['parameters'] == {'gain': [1.0, None], 'well': 1.0}
    assert read['commanded'] == [1.5, 2.5]


def test_the_types_of_numpy_and_names_of_enumerations_are_known():
    class Rung(Enum):
        PLAY = 3

    record = {'kind': 'x', 'n': np.uint64(2**64 - 1), 'b': np.bool_(True), 'r': Rung.PLAY}
    assert strict(encode(record)) == {'kind': 'x', 'n': 2**64 - 1, 'b': True, 'r': 'play'}
    assert strict(encode({'kind': 'x', 'i': np.arange(3), 't': (1, 2)}))['i'] == [0, 1, 2]


def test_a_text_without_utf8_is_written_all_the_same():
    assert strict(encode({'kind': 'x', 'client_id': 'robot \udcff', 'n': 'a\nb\u2028'})) == {
        'kind': 'x',
        'client_id': 'robot ?',
        'n': 'a\nb\u2028',
    }


def circle():
    record = {'kind': 'x'}
    record['self'] = record
    return record


@pytest.mark.parametrize(
    'record',
    [
        None,
        [],
        {},
        {'kind': 5},
        {'kind': 'x', 'bytes': b'abc'},
        {'kind': 'x', 'any': object()},
        {'kind': 'x', (1, 2): 3},
        {'kind': 'x', 'number': 10**5000},
        {'kind': 'x', 'nan': math.nan, 'any': object()},
        {'kind': 'x', 'when': np.datetime64('2026-01-01')},
        circle(),
    ],
)
def test_what_can_be_no_line_is_refused(record):
    with pytest.raises(UnencodableRecord):
        encode(record)


def test_a_line_that_is_too_long_for_its_images_keeps_the_rest():
    images = [{'name': 'front', 'base64': 'x' * (17 << 20)}]
    record = {'kind': 'request', 'seq': 7, 'images': images, 'replay': {'answer': 'x'}}
    sizes = []
    line = encode(record, sizes.append)
    left_out = sizes[0] - len(encode({'kind': 'request', 'seq': 7}))
    assert strict(line) == {'kind': 'request', 'seq': 7, 'left_out_bytes': left_out}


def test_a_line_that_is_too_long_without_images_leaves_nothing_out():
    sizes = []
    with pytest.raises(UnencodableRecord, match='at most'):
        encode({'kind': 'request', 'reason': 'x' * (17 << 20)}, sizes.append)
    assert not sizes


def test_a_line_has_a_bound(monkeypatch):
    monkeypatch.setattr(encoding, 'LINE_LIMIT', 40)
    with pytest.raises(UnencodableRecord, match='40 bytes'):
        encode({'kind': 'x', 'text': 'y' * 40})


@pytest.mark.parametrize(
    'line',
    [
        b'',
        b'\n',
        b'[]',
        b'5',
        b'{}',
        b'{"kind":5}',
        b'{"kind":"x","v":NaN}',
        b'{"kind":"x","v":-Infinity}',
        b'{"kind":"x"',
        b'{"kind":"x"}}',
        b'\xff\xfe',
        b'\0' * 100,
        b'[' * 100_000,
        b'{"kind":"x","v":' + b'9' * 5000 + b'}',
    ],
    ids=lambda line: repr(line[:25]),
)
def test_what_is_no_record_is_a_value_error(line):
    with pytest.raises(ValueError):
        decode(line)


@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(line):
    with contextlib.suppress(ValueError):
        assert isinstance(decode(line)['kind'], str)


def test_every_part_of_a_line_but_the_whole_is_refused():
    line = encode({'kind': 'x', 'v': [1, {'a': 'ü'}], 'n': None})
    for size in range(len(line) - 1):
        with pytest.raises(ValueError):
            decode(line[:size])
    assert decode(line[:-1]) == json.loads(line)


PIXELS = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
IMAGES = (
    Image('front', 2, 4, PIXELS),
    Image('wrist', 2, 4, b'\xff\xd8jpeg', Codec.JPEG, steps_back=1),
)
TASK = 'pick the secret cube'


def written(redaction):
    made = records.RequestRecord(
        1,
        *IDS.fields(),
        status='ok',
        task=redaction.task(TASK),
        images=redaction.image_records(IMAGES),
    )
    return strict(encode(made))


def test_full_is_all_of_it():
    made = written(Redaction('full', 'full'))
    assert made['task'] == TASK
    assert [b64decode(image['base64']) for image in made['images']] == [
        PIXELS.tobytes(),
        IMAGES[1].data,
    ]


def test_a_hash_tells_same_from_other_and_nothing_else():
    made = written(Redaction('hash', 'hash'))
    assert made['task'] == 'sha256:' + sha256(TASK.encode()).hexdigest()
    assert made['images'] == [
        {
            'name': 'front',
            'height': 2,
            'width': 4,
            'channels': 3,
            'channel_bytes': 1,
            'codec': 2,
            'steps_back': 0,
            'sha256': sha256(PIXELS.tobytes()).hexdigest(),
        },
        {
            'name': 'wrist',
            'height': 2,
            'width': 4,
            'channels': 3,
            'channel_bytes': 1,
            'codec': 1,
            'steps_back': 1,
            'sha256': sha256(IMAGES[1].data).hexdigest(),
        },
    ]


def test_none_is_nothing():
    made = written(Redaction('none', 'none'))
    assert not {'task', 'images'} & set(made)


def test_an_image_need_not_be_in_one_piece():
    image = Image('front', 2, 4, PIXELS[:, ::-1])
    (made,) = Redaction().image_records([image])
    assert made['sha256'] == sha256(PIXELS[:, ::-1].tobytes()).hexdigest()


@pytest.mark.parametrize('level', ['hash', 'none'])
def test_parameters_that_hold_an_instruction_are_redacted_too(level):
    redaction = Redaction(instructions=level)
    parameters = {'task': TASK, 'default_task': TASK, 'fps': 30.0}
    assert 'secret' not in str(redaction.values(parameters))
    assert redaction.values(parameters)['fps'] == 30.0
    assert 'secret' not in str(redaction.value('task', TASK))


def test_parameters_are_written_as_they_are_where_nothing_is_secret():
    parameters = {'task': '', 'default_task': TASK, 'fps': 30.0}
    assert Redaction().values(parameters) == parameters


@pytest.mark.parametrize('name', ['images', 'instructions'])
def test_a_level_that_is_none_is_refused(name):
    with pytest.raises(ValueError, match=f"{name} must be one of full, hash, none, got 'some'"):
        Redaction(**{name: 'some'})
