# SPDX-License-Identifier: Apache-2.0
"""What the reader returns for pickles that LeRobot's client and server write."""

from __future__ import annotations

import pickle
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
import numpy as np
import pytest

from benchmarks.harness.exploits import plain_observation
from benchmarks.harness.peer_classes import (
    features,
    pickled,
    RemotePolicyConfig,
    TimedObservation,
)
from lerobot_serve.peer_formats.safe_pickle import (
    Limits,
    PickleRefused,
    read_observation,
    read_policy_config,
)

PROTOCOLS = (2, 3, 4, 5)
JOINTS = ('shoulder.pos', 'gripper.pos')
NUMBERS = st.sampled_from(
    [f'{order}{code}' for order in '<>' for code in ('u1', 'i2', 'i4', 'i8', 'f2', 'f4', 'f8')]
)
ARRAYS = NUMBERS.flatmap(
    lambda dtype: arrays.arrays(dtype, arrays.array_shapes(max_dims=4, max_side=6))
)
SCALARS = st.one_of(
    st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1), st.booleans(), st.text()
)
VALUES = st.one_of(SCALARS, ARRAYS, ARRAYS.map(np.asfortranarray), ARRAYS.map(lambda a: a.flat[0]))


def assert_same(read: object, sent: object) -> None:
    if isinstance(sent, np.ndarray):
        assert read.dtype == sent.dtype.newbyteorder('=')
        assert read.shape == sent.shape
        assert read.tobytes() == sent.astype(read.dtype).tobytes()
    elif isinstance(sent, str):
        assert read == sent
    else:
        np.testing.assert_equal(read, float(sent))


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text(max_size=20), VALUES, max_size=6), st.sampled_from(PROTOCOLS))
def test_an_observation_is_what_was_sent(sent, protocol):
    data = pickled(TimedObservation(2.5, 70_000, sent, must_go=True), protocol)
    with np.errstate(all='ignore'):
        read = read_observation(data)
        assert (read.timestamp, read.timestep, read.must_go) == (2.5, 70_000, True)
        assert list(read.values) == list(sent)
        for name, value in sent.items():
            assert_same(read.values[name], value)


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_the_configuration_of_a_client_is_read(protocol):
    named = features(JOINTS, {'front': (480, 640, 3)})
    sent = RemotePolicyConfig('act', 'user/model', named, 50, 'cuda', {'a': 'b'})
    read = read_policy_config(pickled(sent, protocol))
    assert read.features['observation.state'] == JOINTS
    assert read.features['observation.images.front'] == ('height', 'width', 'channels')
    assert (read.policy_type, read.pretrained_name_or_path) == ('act', 'user/model')
    assert (read.actions_per_chunk, read.device, read.rename_map) == (50, 'cuda', {'a': 'b'})


@pytest.mark.parametrize('put', [b'](cnumpy\ndtype\ne.', b'}X\x01\x00\x00\x00acnumpy\ndtype\ns.'])
def test_a_list_or_dict_holds_no_names(put):
    with pytest.raises(PickleRefused, match='holds a Global, not complete'):
        read_observation(b'\x80\x04' + put)


def test_pictures_are_views_of_the_pickle():
    picture = np.zeros((480, 640, 3), np.uint8)
    data = pickled(TimedObservation(0.0, 0, {'front': picture, 'side': picture.copy()}))
    read_observation(data)
    tracemalloc.start()
    read = read_observation(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000
    assert not read.values['front'].flags.owndata
    with pytest.raises(ValueError, match='read-only'):
        read.values['front'][0] = 1


def test_a_picture_that_is_sent_twice_is_one():
    picture = np.zeros((4, 4, 3), np.uint8)
    read = read_observation(pickled(TimedObservation(0.0, 0, {'a': picture, 'b': picture})))
    assert read.values['a'] is read.values['b']


@pytest.mark.parametrize('protocol', PROTOCOLS)
def test_every_cut_is_refused(protocol):
    data = pickled(plain_observation(), protocol)
    for end in range(len(data)):
        with pytest.raises(PickleRefused):
            read_observation(data[:end])


def test_text_forms_of_old_protocols_are_refused():
    for protocol in (0, 1):
        with pytest.raises(PickleRefused, match='not a pickle of protocol 2 to 5'):
            read_observation(pickled(plain_observation(), protocol))


def test_the_size_of_a_pickle_is_bounded():
    data = pickled(plain_observation())
    with pytest.raises(PickleRefused, match=f'has {len(data)} bytes; 100 are allowed'):
        read_observation(data, Limits(pickle_bytes=100))


@pytest.mark.parametrize(
    ('limits', 'text'),
    [
        ({'opcodes': 20}, 'more than 20 opcodes'),
        ({'all_text_bytes': 40}, 'more than 40 bytes of text'),
        ({'stack_items': 2}, 'more than 2 values wait'),
        ({'marks': 1}, 'nested more than 1 deep'),
        ({'array_dimensions': 2}, 'no shape of at most 2 sizes'),
    ],
)
def test_each_bound_is_checked(limits, text):
    with pytest.raises(PickleRefused, match=text):
        read_observation(pickled(plain_observation()), Limits(**limits))


def test_copies_are_bounded():
    picture = np.zeros((40, 40, 3), '>u2')
    for protocol in (2, 4):
        data = pickled(TimedObservation(0.0, 0, {'a': picture}), protocol)
        with pytest.raises(PickleRefused, match='more than 1000 bytes of big-endian'):
            read_observation(data, Limits(copied_bytes=1000))


@pytest.mark.parametrize(
    ('changed', 'text'),
    [
        ({'timestep': 1.5}, 'timestep must be of type int, got float'),
        ({'timestamp': 'now'}, 'timestamp must be of type float, got str'),
        ({'observation': [1.0]}, 'observation must be of type dict, got list'),
        ({'must_go': 1}, 'must_go must be of type bool, got int'),
        ({'observation': {'a': [1.0]}}, 'a is a list, not an array'),
        ({'observation': {'a': None}}, 'a is a NoneType, not an array'),
    ],
)
def test_a_field_of_another_type_is_refused(changed, text):
    sent = plain_observation()
    for name, value in changed.items():
        setattr(sent, name, value)
    with pytest.raises(PickleRefused, match=text):
        read_observation(pickled(sent))


def test_one_message_is_not_read_as_another():
    config = RemotePolicyConfig('act', 'user/model', {}, 50)
    with pytest.raises(PickleRefused, match='RemotePolicyConfig, which is not allowed'):
        read_observation(pickled(config))
    with pytest.raises(PickleRefused, match='no RemotePolicyConfig'):
        read_policy_config(pickle.dumps({'policy_type': 'act'}, 4))
