# SPDX-License-Identifier: Apache-2.0
"""Bodies of POST /act: every form of a picture and of a state, and each refusal with its field."""

from __future__ import annotations

import json

import cv2
from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest
from support.gateway.gateway_rig import CAMERA
from support.gateway.http_rig import base64_of, body, HEIGHT, image, jpeg_text, WIDTH

from lerobot_serve.gateway.callers.mapping import EQUAL_NAMES, NameMapping
from lerobot_serve.gateway.callers.predictions import PredictionError, Status
from lerobot_serve.gateway.fake_upstream import EXAMPLE_CONTRACT
from lerobot_serve.gateway.http.body import read_body, request_of
from lerobot_serve.gateway.http.fields import FieldError, LISTS_LIMIT
from lerobot_serve.gateway.http.images import image_of, PixelBudget, PIXELS_LIMIT

SHAPE = [HEIGHT, WIDTH, 3]


def png_text(pixels: np.ndarray) -> str:
    return base64_of(cv2.imencode('.png', pixels[..., ::-1])[1].tobytes())


def request(**changes):
    """Return the request of a body."""
    data = json.dumps(body(**changes)).encode()
    return request_of(read_body(data), EQUAL_NAMES, EXAMPLE_CONTRACT)


def refusal(data: bytes | dict) -> FieldError:
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(FieldError) as refused:
        request_of(read_body(raw), EQUAL_NAMES, EXAMPLE_CONTRACT)
    assert refused.value.status is Status.INVALID
    return refused.value


@pytest.mark.parametrize(
    'given_image',
    [
        png_text(image()),
        'data:image/png;base64,' + png_text(image()),
        {'data': png_text(image())},
        {'data': base64_of(image().tobytes()), 'shape': SHAPE},
        image().tolist(),
    ],
    ids=['png', 'data url', 'object', 'raw', 'lists'],
)
def test_each_form_of_a_picture_is_the_same_picture(given_image):
    for changes in ({'image': given_image}, {'image': None, 'images': {CAMERA: given_image}}):
        assert np.array_equal(request(**changes).images[CAMERA], image())


def test_a_jpeg_is_rgb():
    read = request().images[CAMERA]
    assert read.shape == image().shape and np.abs(read.astype(int) - image()).max() < 8


def test_a_short_camera_name_is_enough():
    assert CAMERA in request(image=None, images={'front': jpeg_text(image())}).images


def test_state_by_order_and_by_name():
    names = EXAMPLE_CONTRACT.state_names
    by_name = dict(zip(reversed(names), (3, 2.5, 1), strict=True))
    assert request().state.tolist() == request(state=by_name).state.tolist() == [1, 2.5, 3]


def test_names_of_a_mapping():
    mapping = NameMapping(cameras={'top': CAMERA}, state=('arm', 'hand'))
    given_body = body(image=None, images={'top': jpeg_text(image())})
    given_body |= {'state': {'arm': [1, 2.5], 'hand': 3}}
    read = read_body(json.dumps(given_body).encode())
    asked = request_of(read, mapping, EXAMPLE_CONTRACT)
    assert asked.state.tolist() == [1, 2.5, 3] and list(asked.images) == [CAMERA]


def test_other_fields_arrive():
    more = {'episode_start': True, 'timeout_s': 0.5, 'inference_delay_steps': 3}
    asked = request(**more, instruction=None, task='place', request_id='r1', client_id='arm')
    assert (asked.episode_start, asked.timeout_s, asked.inference_delay_steps) == (True, 0.5, 3)
    assert (asked.task, asked.episode_id) == ('place', 'ep_xyz')


@pytest.mark.parametrize(
    ('changes', 'field', 'expected'),
    [
        # further ones of each field are in test/golden/refusals/http_body.txt
        ({'state': [1, 2]}, 'state', '3 numbers in this order: joint_1.pos'),
        ({'state': [1, 1e300, 3]}, 'state[1]', 'at most 3.4e+38 in size'),
        ({'state': [1, -(10**400), 3]}, 'state[1]', 'at most 3.4e+38 in size'),
        ({'state': {'joint_1.pos': 1e39}}, 'state.joint_1.pos', 'at most 3.4e+38 in size'),
        ({'image': 5}, 'image', 'base64'),
        ({'image': 'no base64!'}, 'image', 'base64'),
        ({'image': base64_of(b'GIF89a')}, 'image', 'JPEG'),
        ({'image': base64_of(b'\xff\xd8broken')}, 'image', 'JPEG'),
        ({'image': base64_of(b'\x89PNG\r\n\x1a\n')}, 'image', 'PNG'),
        ({'image': {'data': base64_of(bytes(9)), 'shape': SHAPE}}, 'image.data', 'by its shape'),
        ({'image': {'data': '', 'shape': [0, 1, 3]}}, 'image.shape', 'height'),
        ({'image': {'data': '', 'shape': [1, 1, 4]}}, 'image.shape', 'height'),
        ({'image': {'shape': SHAPE}}, 'image.data', 'base64'),
        ({'image': {'dat': ''}}, 'image.dat', 'did you mean data'),
        ({'image': [[[1, 2, 300]]]}, 'image', '0 to 255'),
        ({'image': [[[1, 2, 3], [1]]]}, 'image', 'nested lists'),
        ({'image': [[[1, 2, 0.5]]]}, 'image', 'nested lists'),
        ({'image': [[[True] * 3]]}, 'image', 'nested lists'),
        ({'images': {'front': 5}, 'image': None}, 'images.front', 'base64'),
        ({'images': {'front': ''}}, 'image', 'one of them'),
        ({'task': 'x'}, 'task', 'once'),
        ({'episode_id': 'a\nb'}, 'episode_id', 'printable'),
        ({'episode': 'x'}, 'episode', 'did you mean episode_id'),
    ],
)
def test_a_wrong_field_is_named_with_what_is_allowed(changes, field, expected):
    error = refusal(body(**changes))
    assert error.field == field
    assert expected in error.allowed and error.given and error.given in error.text


def test_the_text_on_an_unknown_field_gives_its_name():
    text = refusal(body(image={'dat': ''})).text
    assert text == (
        "image.dat must be one of the fields data, shape (did you mean data?), got 'dat'"
    )


@pytest.mark.parametrize(
    ('data', 'expected'),
    [
        (b'', 'JSON'),
        (b'[1]', 'object'),
        (b'{"state": [NaN]}', 'finite'),
        (b'{"timeout_s": 1e999}', 'number'),
        (b'{"state": [' + b'1' * 5000 + b']}', 'JSON'),
        (b'[' * 100_000, 'JSON'),
        (b'{"a": 1, "a": 2}', 'once'),
        (b'\xff{}', 'JSON'),
        (b'[],' * LISTS_LIMIT + b'[]', 'base64'),
    ],
    ids=['empty', 'list', 'nan', 'infinite', 'digits', 'deep', 'twice', 'utf-8', 'many'],
)
def test_what_is_no_body(data, expected):
    assert expected in refusal(data).allowed


@pytest.mark.parametrize('name', ['instruction', 'task', 'episode_id', 'client_id', 'request_id'])
@pytest.mark.parametrize('wrong', [rb'\ud800', b'\xff', b'\xed\xa0\x80'])
def test_a_text_that_is_no_unicode_is_named(name, wrong):
    error = refusal(b'{"state": [1], "%s": "ab%s"}' % (name.encode(), wrong))
    assert error.field == name
    assert error.allowed == 'text in UTF-8, without lone surrogates'
    error.text.encode()


def test_a_picture_is_refused_by_its_head_before_it_is_decoded(monkeypatch):
    monkeypatch.setattr(cv2, 'imdecode', None)
    huge = bytearray(cv2.imencode('.png', image())[1].tobytes())
    huge[16:24] = (60_000).to_bytes(4, 'big') * 2
    with pytest.raises(FieldError, match='60000x60000'):
        image_of('image', base64_of(bytes(huge)), PixelBudget())


def test_all_pictures_share_one_limit():
    budget = PixelBudget(HEIGHT * WIDTH + 10)
    image_of('a', jpeg_text(image()), budget)
    with pytest.raises(FieldError, match='1 to 10 pixels'):
        image_of('b', jpeg_text(image()), budget)
    assert PIXELS_LIMIT * 3 <= 64 << 20


@given(st.binary(max_size=60) | st.text(max_size=40).map(str.encode))
def test_any_bytes_are_refused_with_a_field(data):
    with pytest.raises(FieldError):
        read_body(data)


@given(st.binary(max_size=80))
def test_any_picture_is_read_or_refused(data):
    for head in (b'', b'\xff\xd8', b'\x89PNG\r\n\x1a\n'):
        try:
            image_of('image', base64_of(head + data), PixelBudget())
        except PredictionError as error:
            assert error.status is Status.INVALID
