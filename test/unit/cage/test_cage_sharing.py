# SPDX-License-Identifier: Apache-2.0
"""Limits that travel: the same cage at the other end, and hostile bytes are a reason in words."""

from __future__ import annotations

from dataclasses import replace
import json
from math import inf
import warnings

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest
from support.edge.cage_rig import moderate, robots, STEP_S, vectors

from lerobot_serve.cage.description import ActionLimit, LastCommand, Motion
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.limits_encoding import BYTES_LIMIT, decode_limits, encode_limits

ARM = ActionLimit('pan.pos', 'pan', Motion.POSITION, -1.0, 1.0, 0.1, max_velocity=2.0)
WHEEL = ActionLimit('x.vel', 'x', Motion.VELOCITY, -inf, inf, 0.5, max_acceleration=3.0)


def changed(**changes: object) -> bytes:
    """Return the bytes of the arm with fields of its one action changed; None removes."""
    content = json.loads(encode_limits([ARM], STEP_S))
    content['actions'][0].update(changes)
    return json.dumps(content).encode()


@given(st.data())
@settings(max_examples=100)
def test_at_the_other_end_is_the_same_cage(data):
    actions = data.draw(robots())
    ours = MotionLimits(actions, STEP_S)
    theirs = decode_limits(encode_limits(actions, STEP_S))
    assert (theirs.names, theirs.step_s) == (ours.names, ours.step_s)
    count = len(actions)
    wanted, here, speed, measured = (data.draw(vectors(count, moderate)) for _ in range(4))
    last = LastCommand(here, speed)
    for known in (None, measured):
        for back in (True, False):
            expected = ours.nearest(wanted, last, known, allow_return=back)
            assert np.array_equal(theirs.nearest(wanted, last, known, allow_return=back), expected)


@given(st.data())
@settings(max_examples=100)
def test_many_commands_at_once_are_judged_like_one_by_one(data):
    limits = MotionLimits(data.draw(robots()), STEP_S)
    shape = data.draw(st.integers(1, 4)), len(limits.names)
    tables = [data.draw(arrays.arrays(float, shape, elements=moderate)) for _ in range(4)]
    for back in (True, False):
        for measured in (None, tables[3]):
            at_once = limits.nearest(
                tables[0], LastCommand(tables[1], tables[2]), measured, allow_return=back
            )
            one_by_one = [
                limits.nearest(
                    wanted,
                    LastCommand(here, speed),
                    None if measured is None else where,
                    allow_return=back,
                )
                for wanted, here, speed, where in zip(*tables, strict=True)
            ]
            assert np.array_equal(at_once, one_by_one)


def test_it_is_json_and_what_is_no_limit_is_null():
    content = json.loads(encode_limits([ARM, WHEEL], 0.02))
    assert content['step_s'] == 0.02
    assert content['actions'][0]['name'] == 'pan.pos'
    wheel = content['actions'][1]
    assert (wheel['motion'], wheel['low'], wheel['high']) == ('velocity', None, None)
    assert (wheel['max_step'], wheel['max_velocity']) == (0.5, None)
    assert 'Infinity' not in json.dumps(content)


def test_names_may_be_in_any_language():
    data = encode_limits([replace(ARM, name='Gelenk ü/腕')], STEP_S)
    assert decode_limits(data).names == ('Gelenk ü/腕',)


def test_what_is_not_known_is_ignored():
    content = json.loads(changed(max_jerk=5.0))
    content['vendor'] = ['more']
    assert decode_limits(json.dumps(content).encode()).names == ('pan.pos',)


REFUSED = {
    'nothing': (b'', 'not JSON'),
    'no UTF-8': (b'\xff\xfe', 'not JSON'),
    'no JSON': (b'{"step_s": ', 'not JSON'),
    'too deep': (b'[' * 30_000, 'not JSON'),
    'too long': (b' ' * (BYTES_LIMIT + 1), f'{BYTES_LIMIT} are allowed'),
    'too long a number': (b'{"actions": [], "step_s": ' + b'9' * 5000 + b'}', 'not JSON'),
    'a list': (b'[]', 'an object with step_s and a list of actions'),
    'no actions': (b'{"step_s": 1}', 'an object with step_s and a list of actions'),
    'no step': (b'{"actions": []}', 'step_s must be a number'),
    'a step of no time': (b'{"actions": [], "step_s": 0}', 'step_s must be in'),
    'a step of nearly no time': (b'{"actions": [], "step_s": 1e-300}', 'step_s must be in'),
    'a step without end': (b'{"actions": [], "step_s": 1e999}', 'step_s must be a number'),
    'a step of NaN': (b'{"actions": [], "step_s": NaN}', 'step_s must be a number'),
    'an action that is none': (b'{"actions": [7], "step_s": 1}', 'action 1: expected an object'),
    'no name': (changed(name=None), 'action 1: name must be printable text'),
    'half a letter': (changed(name='\ud800'), 'action 1: name must be printable text'),
    'a long name': (changed(name='x' * 200), 'action 1: name must be printable text'),
    'another motion': (changed(motion='torque'), 'motion must be position or velocity'),
    'a text': (changed(low='-1'), 'pan.pos: low must be a number'),
    'a truth': (changed(high=True), 'pan.pos: high must be a number'),
    'far too much': (changed(max_velocity=1e300), 'pan.pos: max_velocity must be a number'),
    'no step at all': (changed(max_step=None), 'pan.pos'),
    'a limit below another': (changed(low=2.0), 'low <= high'),
    'a pace of nothing': (changed(max_acceleration=0.0), 'limits above 0'),
}


@pytest.mark.parametrize(('data', 'words'), REFUSED.values(), ids=REFUSED)
def test_what_makes_no_sense_is_refused_in_words(data, words):
    with pytest.raises(ValueError, match=words) as refused:
        decode_limits(data)
    assert str(refused.value).startswith('limits: ')
    assert len(str(refused.value)) < 1000


values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=5,
)
FIELDS = ('name', 'motion', 'low', 'high', 'max_step', 'max_velocity', 'max_lead', 'step_s')


def tried(data: bytes) -> None:
    """What is taken can be judged by; everything else is a ValueError."""
    try:
        limits = decode_limits(data)
    except ValueError as error:
        assert str(error)
        return
    rest = np.zeros((2, len(limits.names)))
    with np.errstate(all='ignore'):
        limits.nearest(rest + 0.1, LastCommand(rest, rest), None, allow_return=True)


@given(st.dictionaries(st.sampled_from(FIELDS), values, max_size=3))
@settings(max_examples=200)
def test_no_value_does_harm(changes):
    content = json.loads(encode_limits([ARM], STEP_S))
    content.update({'step_s': changes.pop('step_s')} if 'step_s' in changes else {})
    content['actions'][0].update(changes)
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        tried(json.dumps(content).encode('utf-8', 'replace'))


@given(st.binary(max_size=60), st.integers(0, 300), st.integers(0, 255))
@settings(max_examples=200)
def test_no_bytes_do_harm(noise, at, new):
    tried(noise)
    data = bytearray(encode_limits([ARM, WHEEL], STEP_S))
    data[at % len(data)] = new
    tried(bytes(data))
