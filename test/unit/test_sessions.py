"""Sessions: what does not fit is refused before anything moves, and says what was asked."""

from __future__ import annotations

from dataclasses import replace
import math

import pytest

from lerobot_serve.policies.base import Camera
from lerobot_serve.policies.fake import DESCRIPTION, JOINTS
from lerobot_serve.server.sessions import Rules, SessionTable
from lerobot_serve.wire.schema import Refusal, SCHEMA_VERSION
from lerobot_serve.wire.session import CameraSpec, Refused, SessionAsk

FRONT = 'observation.images.front'
SERVED = replace(DESCRIPTION, cameras=(Camera(FRONT, 480, 640),))
S = 1_000_000_000
RULES = Rules(
    max_sessions=2,
    default_task='fold the towel',
    pin_task=False,
    strict_fps=False,
    grace_ns=5 * S,
    idle_ns=60 * S,
)
ASK = SessionAsk(
    client_id='robot_1',
    instance=1,
    session_epoch=7,
    reply_topic='/robot_1/edge_controller/action_chunk',
    state_names=JOINTS,
    action_names=JOINTS,
    cameras=(CameraSpec(FRONT, 480, 640),),
    fps=30.0,
)


def table(**rules: object) -> SessionTable:
    return SessionTable(SERVED, replace(RULES, **rules))


def content(sessions: SessionTable) -> tuple:
    return list(sessions), dict(sessions._heard_ns), sessions.rules


def refusal(sessions: SessionTable, ask: SessionAsk, now_ns: int = 0) -> Refused:
    """Return the refusal of `ask`, which must have changed nothing."""
    before = content(sessions)
    with pytest.raises(Refused) as refused:
        sessions.open(ask, now_ns)
    assert content(sessions) == before
    return refused.value


WRONG = [
    ({'schema_version': SCHEMA_VERSION + 1}, {}, Refusal.SCHEMA_TOO_NEW, ['2', 'update the']),
    ({'schema_version': 0}, {}, Refusal.SCHEMA_TOO_OLD, ['0', '1', 'update the client']),
    ({'client_id': ''}, {}, Refusal.BAD_NAME, ['client_id is empty']),
    ({'client_id': ' \t'}, {}, Refusal.BAD_NAME, ['client_id is empty']),
    ({'client_id': 'a\nb'}, {}, Refusal.BAD_NAME, ['client_id', r"'a\nb'"]),
    ({'reply_topic': ''}, {}, Refusal.BAD_NAME, ['reply_topic', "''"]),
    ({'reply_topic': 'relative'}, {}, Refusal.BAD_NAME, ['reply_topic', "'relative'"]),
    ({'reply_topic': '/a b'}, {}, Refusal.BAD_NAME, ['reply_topic', "'/a b'"]),
    ({'reply_topic': '/' + 'a' * 300}, {}, Refusal.BAD_NAME, ['reply_topic', "'/aaa"]),
    (
        {'action_names': ('pan.pos', 'tilt.pos', 'grip.pos')},
        {},
        Refusal.ACTION_NAMES,
        ['action_names', 'the names differ', 'tilt.pos', 'lift.pos'],
    ),
    ({'action_names': JOINTS[:2]}, {}, Refusal.ACTION_NAMES, ['the names differ']),
    ({'action_names': JOINTS[::-1]}, {}, Refusal.ACTION_NAMES, ['the order differs', 'pan.pos']),
    ({'state_names': JOINTS[::-1]}, {}, Refusal.STATE_NAMES, ['state_names', 'order differs']),
    ({'state_names': ()}, {}, Refusal.STATE_NAMES, ['state_names', '[]', 'pan.pos']),
    ({'cameras': ()}, {}, Refusal.CAMERAS, [FRONT, 'the robot has []']),
    (
        {'cameras': (CameraSpec(FRONT, 480, 640, 1),)},
        {},
        Refusal.CAMERAS,
        [FRONT, '3 channels', 'has 1'],
    ),
    ({'fps': 50.0}, {'strict_fps': True}, Refusal.FPS, ['50 Hz', '30 Hz']),
    ({'fps': 0.0}, {}, Refusal.FPS, ['got 0', '30 Hz']),
    ({'fps': -30.0}, {}, Refusal.FPS, ['got -30']),
    ({'fps': math.nan}, {}, Refusal.FPS, ['got nan']),
    ({'fps': math.inf}, {}, Refusal.FPS, ['got inf']),
    ({'task': 'dance'}, {'pin_task': True}, Refusal.TASK_PINNED, ['dance', 'fold the towel']),
    ({'policy': 'other'}, {}, Refusal.WRONG_POLICY, ["'other'", SERVED.fingerprint]),
    ({'policy': 'fake@00'}, {}, Refusal.WRONG_POLICY, ["'fake@00'", SERVED.fingerprint]),
    ({'codec': 0}, {}, Refusal.CODEC, ['got 0']),
    ({'codec': 9}, {}, Refusal.CODEC, ['1 (JPEG) or 2 (raw)', 'got 9']),
]


@pytest.mark.parametrize(('asked', 'rules', 'code', 'words'), WRONG)
def test_what_does_not_fit_is_refused_and_changes_nothing(asked, rules, code, words):
    sessions = table(**rules)
    sessions.open(replace(ASK, task=RULES.default_task), 0)
    refused = refusal(sessions, replace(ASK, session_epoch=8, **asked), 1)
    assert refused.code == code
    assert all(word in str(refused) for word in words), str(refused)


@pytest.mark.parametrize('policy', ['', 'fake', SERVED.fingerprint])
def test_a_policy_may_be_asked_for_by_id_and_by_fingerprint(policy):
    assert not table().open(replace(ASK, policy=policy), 0).warnings


@pytest.mark.parametrize(
    ('asked', 'words'),
    [
        ({'fps': 60.0}, ['60 Hz', '30 Hz', '2 times as fast']),
        ({'cameras': (CameraSpec(FRONT, 480, 480),)}, ['480x480', '480x640', 'stretched']),
        ({'cameras': (CameraSpec(FRONT), CameraSpec('side'))}, ["['side']", 'not used']),
        ({'wants_rtc': True}, ['fake has no real-time chunking']),
    ],
)
def test_what_is_only_odd_is_a_warning(asked, words):
    (warning,) = table().open(replace(ASK, **asked), 0).warnings
    assert all(word in warning for word in words), warning


@pytest.mark.parametrize('camera', [CameraSpec(FRONT), CameraSpec(FRONT, 240, 320)])
def test_a_camera_of_any_size_and_the_trained_shape_needs_no_warning(camera):
    assert not table().open(replace(ASK, cameras=(camera,)), 0).warnings


def test_a_rate_within_the_rounding_of_the_message_is_the_same_rate():
    assert not table(strict_fps=True).open(replace(ASK, fps=30.0 + 1e-6), 0).warnings


def test_a_policy_without_a_known_rate_serves_with_a_warning():
    sessions = SessionTable(replace(SERVED, trained_fps=0.0), RULES)
    (warning,) = sessions.open(ASK, 0).warnings
    assert 'at which rate' in warning


def test_a_session_takes_the_default_task():
    assert table().open(ASK, 0).task == 'fold the towel'
    assert table().open(replace(ASK, task='dance'), 0).task == 'dance'
    assert table(pin_task=True).open(ASK, 0).task_pinned


def test_the_same_ask_twice_is_the_same_session():
    sessions = table(max_sessions=1)
    assert sessions.open(ASK, 0) is sessions.open(replace(ASK), 5)
    assert len(sessions) == 1


def test_a_new_epoch_replaces_the_session():
    sessions = table(max_sessions=1)
    old = sessions.open(ASK, 0)
    new = sessions.open(replace(ASK, session_epoch=8), 1)
    assert list(sessions) == [new]
    assert sessions.find('robot_1', 7) is None
    assert sessions.find('robot_1', 8) is new
    assert old.session_id != new.session_id


def test_a_name_that_the_message_cannot_hold_is_cut_in_the_session_id():
    session = table().open(replace(ASK, client_id='ü' * 64), 0)
    assert len(session.session_id.encode()) <= 128
    assert session.session_id.endswith('#00000007')


def test_capacity_is_for_names_not_for_asks():
    sessions = table()
    sessions.open(ASK, 0)
    sessions.open(replace(ASK, client_id='robot_2'), 0)
    refused = refusal(sessions, replace(ASK, client_id='robot_3'))
    assert refused.code == Refusal.CAPACITY
    assert '2 of 2' in str(refused)


def test_a_second_robot_of_the_same_name_is_refused_while_the_first_is_heard():
    sessions = table()
    sessions.open(ASK, 0)
    second = replace(ASK, instance=2)
    sessions.heard('robot_1', 4 * S)
    refused = refusal(sessions, second, 8 * S)
    assert refused.code == Refusal.NAME_IN_USE
    assert all(word in str(refused) for word in ("'robot_1'", '4.0 s ago', 'after 5 s'))
    assert sessions.open(second, 9 * S).ask.instance == 2


def test_a_silent_session_expires_and_one_that_is_heard_does_not():
    sessions = table()
    first = sessions.open(ASK, 0)
    second = sessions.open(replace(ASK, client_id='robot_2'), 0)
    assert sessions.expire(60 * S) == []
    sessions.heard('robot_1', 30 * S)
    assert sessions.expire(61 * S) == [second]
    assert list(sessions) == [first]
    assert sessions.expire(91 * S) == [first]
    assert content(sessions)[:2] == ([], {})


def test_hearing_a_stranger_keeps_nothing():
    sessions = table()
    sessions.heard('stranger', 1)
    assert content(sessions)[:2] == ([], {})


def test_only_the_right_epoch_closes_a_session():
    sessions = table()
    session = sessions.open(ASK, 0)
    assert sessions.close('robot_1', 8) is None
    assert sessions.close('robot_2', 7) is None
    assert list(sessions) == [session]
    assert sessions.close('robot_1', 7) is session
    assert sessions.close('robot_1', 7) is None
    assert len(sessions) == 0


def test_changed_rules_leave_open_sessions_open():
    sessions = table()
    sessions.open(ASK, 0)
    sessions.open(replace(ASK, client_id='robot_2'), 0)
    before = list(sessions)
    sessions.change_rules(max_sessions=1, grace_ns=0)
    assert list(sessions) == before
    assert refusal(sessions, replace(ASK, client_id='robot_3')).code == Refusal.CAPACITY
    assert sessions.open(replace(ASK, instance=2), 0).ask.instance == 2
