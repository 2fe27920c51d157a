# SPDX-License-Identifier: Apache-2.0
"""The history: rows and frames in their places, within one episode, none encoded twice."""

from __future__ import annotations

import weakref

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.errors import Unencodable
from lerobot_serve.contract.schema import Codec
from lerobot_serve.edge.inputs.latest import (
    HistoryStep,
    InputSnapshot,
    InputsNotReady,
    LatestInputs,
    ObservationHistory,
)
from lerobot_serve.edge.inputs.observation_builder import camera_messages, encode_frames

STEP_NS = 10
MAX_AGE_NS = 3 * STEP_NS


class Robot:
    """A history with one camera, whose frame is the time of its arrival, and a clock in steps."""

    def __init__(self, steps: int = 3, stride_steps: int = 2) -> None:
        self.inputs = LatestInputs({'front': MAX_AGE_NS})
        self.history = ObservationHistory(self.inputs)
        self.history.require(steps, stride_steps)
        self.step = 0

    @property
    def now_ns(self) -> int:
        return self.step * STEP_NS

    def arrive(self) -> None:
        self.inputs.deposit('front', self.step, self.now_ns)

    def live(self, steps: int = 1, *, frames: bool = True) -> None:
        """Let control steps pass, with a new frame in each or without."""
        for _ in range(steps):
            self.step += 1
            if frames:
                self.arrive()
            self.history.record(self.step, self.now_ns)

    def taken(self) -> list[tuple[int, int]]:
        """Return the frames of a request and how far back they claim to be."""
        moments = self.history.take(self.now_ns)
        return [(moment.snapshot.values['front'], moment.steps_back) for moment in moments]


def test_a_frame_between_two_steps_waits_for_the_next_one():
    robot = Robot(steps=2, stride_steps=1)
    robot.live(4)
    robot.inputs.deposit('front', 4.5, robot.now_ns + 5)
    assert robot.taken() == [(3, 1), (4, 0)]
    robot.live(frames=False)
    assert robot.taken() == [(4, 1), (4.5, 0)]


def test_an_episode_knows_nothing_of_the_one_before():
    robot = Robot(steps=3, stride_steps=1)
    robot.live(8)
    robot.history.restart()
    robot.live(2)
    assert robot.taken() == [(9, 2), (9, 1), (10, 0)]
    assert robot.history.gaps == 0


def test_a_stale_input_is_a_gap_behind_which_the_history_begins_anew():
    robot = Robot(steps=3, stride_steps=1)
    robot.live(4, frames=False)
    assert robot.history.gaps == 0
    robot.live(5)
    robot.live(6, frames=False)
    with pytest.raises(InputsNotReady, match='front is'):
        robot.taken()
    assert robot.history.gaps == 1
    robot.live(2)
    assert robot.taken() == [(16, 2), (16, 1), (17, 0)]
    assert robot.history.gaps == 1


def test_a_control_step_that_was_missed_is_a_gap():
    robot = Robot(steps=3, stride_steps=1)
    robot.live(5)
    robot.step += 1
    robot.live(2)
    assert robot.taken() == [(7, 2), (7, 1), (8, 0)]
    assert robot.history.gaps == 1


def test_another_session_keeps_what_is_known_of_the_episode():
    robot = Robot(steps=2, stride_steps=2)
    robot.live(9)
    robot.history.require(3, 1)
    assert robot.taken() == [(7, 2), (8, 1), (9, 0)]
    robot.history.require(1, 1)
    assert robot.taken() == [(9, 0)]
    robot.live(3)
    robot.history.require(2, 1)
    robot.live()
    assert robot.taken() == [(13, 1), (13, 0)]
    assert robot.history.gaps == 0


class Frame:
    """Something that can be seen to be gone."""


@pytest.mark.parametrize(
    ('steps', 'stride_steps', 'kept'), [(1, 1, 1), (1, 7, 1), (2, 1, 2), (3, 4, 9), (5, 1, 5)]
)
def test_no_more_is_kept_than_is_asked_for(steps, stride_steps, kept):
    robot, alive = Robot(steps, stride_steps), weakref.WeakSet()
    for _ in range(20):
        frame = Frame()
        alive.add(frame)
        robot.inputs.deposit('front', frame, robot.now_ns + STEP_NS)
        robot.live(frames=False)
    del frame
    assert len(alive) == kept


def test_one_observation_is_the_newest_of_everything():
    robot = Robot(steps=1)
    robot.live(3)
    robot.inputs.deposit('front', 'later', robot.now_ns + 1)
    assert robot.taken() == [('later', 0)]


class Naive:
    """All that was ever lived, one entry a control step; None where there was nothing to see."""

    def __init__(self) -> None:
        self.lived: list[int | None] = []
        self.frame: int | None = None
        self.missed = 0

    def live(self, now_ns: int) -> None:
        # steps that were missed are known as such when the next one comes
        self.lived += [None] * self.missed + [self.fresh(now_ns)]
        self.missed = 0

    def fresh(self, now_ns: int) -> int | None:
        stale = self.frame is None or now_ns - self.frame * STEP_NS > MAX_AGE_NS
        return None if stale else self.frame

    def rows(self, steps: int, stride_steps: int) -> list[tuple[int, int]]:
        """Look back from the newest step for as long as there is no gap."""
        unbroken: list[int] = []
        for frame in reversed(self.lived):
            if frame is None:
                break
            unbroken.append(frame)
        unbroken = unbroken or [self.frame]
        backs = [stride_steps * row for row in reversed(range(steps))]
        return [(unbroken[min(back, len(unbroken) - 1)], back) for back in backs]


EVENTS = ('frame and step',) * 4 + ('step', 'step', 'frame', 'missed', 'restart', 'take')


@given(st.integers(2, 5), st.integers(1, 4), st.lists(st.sampled_from(EVENTS), max_size=60))
def test_no_script_makes_a_row_that_was_not_lived_just_then(steps, stride_steps, script):
    robot, naive = Robot(steps, stride_steps), Naive()
    for event in (*script, 'take'):
        if event.startswith('frame'):
            naive.frame = robot.step + ('step' in event)
        if event == 'frame':
            robot.arrive()
        elif event == 'missed':
            robot.step += 1
            naive.missed += 1
        elif event == 'restart':
            robot.history.restart()
            naive.lived.clear()
        elif event.endswith('step'):
            robot.live(frames='frame' in event)
            naive.live(robot.now_ns)
        elif naive.fresh(robot.now_ns) is None:
            with pytest.raises(InputsNotReady):
                robot.taken()
        else:
            assert robot.taken() == naive.rows(steps, stride_steps)


CAMERAS = ('front', 'wrist')
QUALITY = 80


def raw(value: int) -> bytes:
    """Return a small grey frame as an input delivers it: another object at each call."""
    return bytes([value]) * (8 * 8)


class Opener:
    """Opens frames and remembers which."""

    def __init__(self) -> None:
        self.opened: list[bytes] = []

    def __call__(self, _: str, data: bytes) -> np.ndarray:
        self.opened.append(data)
        return np.frombuffer(data, np.uint8).reshape(8, 8, 1)


def read_all(steps, cameras, read) -> dict:
    """Read each message of the cameras once, as the builder of observations does."""
    return {key: read(key[0], raw) for key, raw in camera_messages(steps, cameras).items()}


@pytest.fixture
def opener() -> Opener:
    return Opener()


@pytest.fixture
def encode(opener):
    """Give a function that encodes moments, oldest first, two control steps apart."""
    pool = image_codec.ImageCodecPool(2)

    def encode(
        *moments: dict[str, bytes], cameras: tuple[str, ...] = CAMERAS, codec: Codec = Codec.JPEG
    ) -> tuple[Image, ...]:
        newest = len(moments) - 1
        names = {name: name for name in cameras}
        steps = tuple(
            HistoryStep(InputSnapshot(m, 0), 2 * (newest - i)) for i, m in enumerate(moments)
        )
        frames = read_all(steps, cameras, opener)
        return encode_frames(steps, names, frames, pool, codec, QUALITY)

    yield encode
    pool.close()


def content(encoded: tuple[Image, ...]) -> list[tuple[str, int, int]]:
    """Return name, age and pixel of each image."""
    return [(i.name, i.steps_back, int(image_codec.decode(i).mean())) for i in encoded]


@pytest.mark.parametrize('codec', Codec)
def test_each_frame_has_its_camera_and_its_age(encode, codec):
    moments = [{'front': raw(10 + n), 'wrist': raw(20 + n)} for n in range(3)]
    assert content(encode(*moments, codec=codec)) == [
        ('front', 4, 10),
        ('wrist', 4, 20),
        ('front', 2, 11),
        ('wrist', 2, 21),
        ('front', 0, 12),
        ('wrist', 0, 22),
    ]


def test_a_frame_in_several_rows_is_opened_and_encoded_once(encode, opener):
    slow, first, second = raw(10), raw(20), raw(21)
    encoded = encode(
        {'front': slow, 'wrist': first},
        {'front': slow, 'wrist': second},
        {'front': slow, 'wrist': second},
    )
    assert content(encoded) == [
        ('front', 4, 10),
        ('wrist', 4, 20),
        ('front', 2, 10),
        ('wrist', 2, 21),
        ('front', 0, 10),
        ('wrist', 0, 21),
    ]
    assert sorted(opener.opened) == [slow, first, second]
    assert len({id(image.data) for image in encoded}) == 3


def test_equal_bytes_of_two_cameras_stay_two_images(encode):
    same = raw(10)
    encoded = encode({'front': same, 'wrist': same})
    assert content(encoded) == [('front', 0, 10), ('wrist', 0, 10)]


def test_names_that_look_like_ages_are_not_mixed_up(encode):
    odd = 'front, 2 steps back'
    moments = [{'front': raw(10 + n), odd: raw(20 + n)} for n in range(2)]
    assert content(encode(*moments, cameras=('front', odd))) == [
        ('front', 2, 10),
        (odd, 2, 20),
        ('front', 0, 11),
        (odd, 0, 21),
    ]


def test_one_moment_is_what_it_would_be_alone(encode):
    (image,) = encode({'front': raw(10)}, cameras=('front',))
    alone = image_codec.encode('front', Opener()('front', raw(10)), Codec.JPEG, quality=QUALITY)
    assert bytes(image.data) == bytes(alone.data)
    assert (image.name, image.height, image.width) == ('front', 8, 8)
    assert (image.codec, image.channels, image.steps_back) == (Codec.JPEG, 1, 0)


def test_no_cameras_are_no_images(encode):
    assert encode({}, {}, cameras=()) == ()


def test_a_frame_that_cannot_be_encoded_is_named_with_its_age(opener):
    pool = image_codec.ImageCodecPool(1)
    moments = tuple(HistoryStep(InputSnapshot({'front': raw(n)}, 0), 1 - n) for n in range(2))
    with pytest.raises(Unencodable, match='camera front, 0 steps back: a frame must be'):
        encode_frames(
            moments,
            {'front': 'front'},
            read_all(moments, ['front'], lambda *given: opener(*given).astype(np.float32)),
            pool,
            Codec.JPEG,
            QUALITY,
        )


def test_a_frame_that_is_ready_is_sent_as_it_is_under_the_name_of_the_policy():
    pool = image_codec.ImageCodecPool(1)
    ready = Image('', 8, 8, b'a jpeg', Codec.JPEG)
    moments = tuple(
        HistoryStep(InputSnapshot({'front': raw(n), 'wrist': raw(7)}, 0), 1 - n) for n in (0, 1)
    )
    names = {'front': 'cam_high', 'wrist': 'cam_low'}
    frames = read_all(
        moments, names, lambda name, data: ready if name == 'front' else Opener()(name, data)
    )
    encoded = encode_frames(moments, names, frames, pool, Codec.JPEG, QUALITY)
    assert [(i.name, i.steps_back) for i in encoded] == [
        ('cam_high', 1),
        ('cam_low', 1),
        ('cam_high', 0),
        ('cam_low', 0),
    ]
    assert [i.data == b'a jpeg' for i in encoded] == [True, False, True, False]
