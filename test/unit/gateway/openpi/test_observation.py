# SPDX-License-Identifier: Apache-2.0
"""Observations of openpi's examples, by the mappings that are shipped for them."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest
from support.gateway.openpi_messages import aloha, ALOHA_CAMERAS, droid, libero, packed, picture

from lerobot_serve.errors import UserError
from lerobot_serve.files.load import load
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.openpi.conversation import Episodes
from lerobot_serve.gateway.openpi.observation import (
    Observation,
    ObservationMapping,
    OpenpiMappingFile,
    read_observation_mapping,
    request_of,
    rgb_image,
    sorted_observation,
)
from lerobot_serve.gateway.upstream import PolicyContract
from lerobot_serve.peer_formats.msgpack_arrays import unpack_openpi


def contract(state: int, actions: int, cameras: list[str]) -> PolicyContract:
    return PolicyContract(
        policy='pi0',
        fingerprint='pi0@0123456789ab',
        state_names=tuple(f's{i}' for i in range(state)),
        action_names=tuple(f'a{i}' for i in range(actions)),
        cameras=dict.fromkeys(cameras, (224, 224, 3)),
        chunk_steps=10,
        control_hz=15.0,
    )


def request(example, mapping: ObservationMapping, policy: PolicyContract):
    """Return the request for an example, after the way over the wire."""
    found = sorted_observation(unpack_openpi(packed(example)), mapping.form.task_key)
    return request_of(found, mapping, policy, episode_start=True)


@pytest.fixture
def shipped(repository):
    return lambda name: read_observation_mapping(str(repository / f'config/gateway/{name}.yaml'))


DROID = ['observation.images.exterior_1_left', 'observation.images.wrist_left']
LIBERO = ['observation.images.image', 'observation.images.image2']


@pytest.mark.parametrize(
    ('name', 'example', 'actions', 'cameras', 'state'),
    [
        ('aloha', aloha, 14, [f'observation.images.{each}' for each in ALOHA_CAMERAS], [1] * 14),
        ('droid', droid, 8, DROID, [*np.linspace(0, 1, 7), 0.5]),
        ('libero', libero, 7, LIBERO, [*np.linspace(0, 1, 8)]),
    ],
)
def test_an_example_of_openpi(shipped, name, example, actions, cameras, state):
    sent = example()
    asked = request(sent, shipped(name), contract(len(state), actions, cameras))
    assert asked.state.tolist() == pytest.approx(state) and asked.task == 'do something'
    pictures = sent.get('images', sent).values()
    frames = [each for each in pictures if getattr(each, 'ndim', 0) == 3]
    for camera, frame in zip(cameras, frames, strict=True):
        rgb = frame.transpose(1, 2, 0) if name == 'aloha' else frame
        assert np.array_equal(asked.images[camera], rgb)


def test_a_scalar_gripper_is_a_value_of_the_state(shipped):
    example = droid() | {'observation/gripper_position': np.float64(0.5)}
    assert request(example, shipped('droid'), contract(8, 8, DROID)).state[-1] == 0.5


def test_a_prompt_of_bytes_is_text(shipped):
    example = libero() | {'prompt': 'größer'.encode()}
    assert request(example, shipped('libero'), contract(8, 7, LIBERO)).task == 'größer'


def test_a_picture_is_not_copied():
    image = picture(8, 9, 3)
    assert rgb_image('a', image, 'auto') is image


@pytest.mark.parametrize('layout', ['auto', 'chw'])
def test_channels_first_are_turned(layout):
    image = picture(3, 8, 9)
    assert np.array_equal(rgb_image('a', image, layout), image.transpose(1, 2, 0))


def test_floats_are_scaled_as_openpi_scales_them():
    image = np.array([[[0.0, 0.5, 1.0]]], np.float32)
    assert rgb_image('a', image, 'auto').tolist() == [[[0, 127, 255]]]


@pytest.mark.parametrize(
    ('image', 'layout', 'expected'),
    [
        (picture(8, 9, 4), 'auto', 'height x width x 3'),
        (picture(8, 9, 3), 'chw', '3 x height x width'),
        (picture(3, 8, 9), 'hwc', 'height x width x 3'),
        (picture(2, 8, 9, 3), 'auto', 'one frame'),
        (np.zeros((0, 9, 3), np.uint8), 'auto', 'empty'),
        (np.full((2, 2, 3), np.nan), 'auto', 'outside'),
        (np.full((2, 2, 3), 2.0), 'auto', 'outside'),
        (np.zeros((2, 2, 3), np.int64), 'auto', 'uint8'),
    ],
)
def test_other_pictures_are_refused(image, layout, expected):
    with pytest.raises(PredictionError, match=expected) as refused:
        rgb_image('a', image, layout)
    assert refused.value.status is Status.INVALID


@pytest.mark.parametrize(
    ('message', 'expected'),
    [
        ([1, 2], 'mapping'),
        ({'images': {'x': 1}, 'images/x': 2}, 'twice'),
        ({'endpoint': 'kill'}, 'infer or reset'),
        ({'prompt': memoryview(b'\xff')}, 'UTF-8'),
    ],
)
def test_other_messages_are_refused(message, expected):
    with pytest.raises(PredictionError, match=expected):
        sorted_observation(message, 'prompt')


def test_a_state_of_words_is_refused(shipped):
    example = libero() | {'observation/state': ['a'] * 8}
    with pytest.raises(PredictionError, match='numbers'):
        request(example, shipped('libero'), contract(8, 7, LIBERO))


def test_an_episode_begins_where_the_client_says_so():
    first, other = Observation({}, {}, 'pick'), Observation({}, {}, 'place')
    by_task, by_connection = Episodes(by_task=True), Episodes(by_task=False)
    order = [first, first, other, other]

    def starts(episodes, seen):
        is_start = episodes.is_start(seen)
        episodes.on_predicted(seen)
        return is_start

    assert [starts(by_task, each) for each in order] == [True, False, True, False]
    assert [starts(by_connection, each) for each in order] == [True, False, False, False]
    by_connection.on_reset()
    assert starts(by_connection, other) and not starts(by_connection, other)
    named = Observation({}, {}, 'place', episode_id='e2')
    assert starts(by_connection, named) and not starts(by_connection, named)


@pytest.mark.parametrize(
    ('content', 'expected'),
    [
        ({'openpi': {'image_layout': 'rgb'}}, "'auto' or 'hwc' or 'chw'"),
        ({'openpi': {'image_layuot': 'chw'}}, 'did you mean image_layout'),
        ({'openpi': {'new_episode': 'never'}}, "'connection' or 'task'"),
        ({'openpi': {'task_key': ''}}, 'must be a name'),
        ({'openpi': {'metadata': [1]}}, 'mapping of names'),
        (
            {'openpi': {'metadata': {'day': date(2026, 1, 1)}}},
            'msgpack',
        ),
        ({'openpi': {'metadata': {'a': 'x' * 70_000}}}, 'at most 65536 bytes'),
        ({'openpi': 'chw'}, 'a group of image_layout'),
        ({'camera': {}}, 'cameras'),
        ('chw', 'a group of cameras'),
    ],
)
def test_a_wrong_mapping_is_refused(content, expected):
    with pytest.raises(ValueError, match=expected):
        load(OpenpiMappingFile, content, 'mapping.yaml')


def test_a_missing_mapping_is_named(tmp_path):
    with pytest.raises(UserError, match=r'none\.yaml'):
        read_observation_mapping(str(tmp_path / 'none.yaml'))
