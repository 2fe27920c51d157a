# SPDX-License-Identifier: Apache-2.0
"""What is left of images and instructions."""

from __future__ import annotations

from base64 import b64decode
from hashlib import sha256

import numpy as np
import pytest
from support.tools.trace_rig import IDS, strict

from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.schema import Codec
from lerobot_serve.trace.format import records
from lerobot_serve.trace.format.encoding import encode
from lerobot_serve.trace.format.redaction import Redaction

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
