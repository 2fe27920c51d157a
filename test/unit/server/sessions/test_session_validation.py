# SPDX-License-Identifier: Apache-2.0
"""The contract: what cannot match is refused before anything moves, what is odd is a warning."""

from __future__ import annotations

from dataclasses import replace
import math

import pytest
from support.server.fake_policy import JOINTS
from support.server.session_rig import ask, FRONT, RULES, SERVED

from lerobot_serve.contract.limits import SCHEMA_VERSION
from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
from lerobot_serve.contract.schema import Refusal
from lerobot_serve.contract.services.session import SessionRefused
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_validation import (
    check_names,
    check_session_request,
    check_version,
)

STRICT = {'require_trained_fps': True}
PINNED = {'pin_task': True}
OTHERS = ('pan.pos', 'tilt.pos', 'grip.pos')
ROBOT_FILE = 'correct the robot file'


def check(
    asked: OpenSessionRequest, served: PolicyDescription, rules: ServerParameters
) -> tuple[str, ...]:
    check_version(asked)
    check_names(asked)
    return check_session_request(asked, served, rules)


# what is asked, and of the rules what differs; the code; and in the text: what was asked, what is
# served or allowed, what to change
REFUSED = {
    'schema too new': (
        {'schema_version': SCHEMA_VERSION + 1},
        Refusal.SCHEMA_TOO_NEW,
        ['schema version 2', 'this server supports 1 to 1', 'update the server'],
    ),
    'schema too old': (
        {'schema_version': 0},
        Refusal.SCHEMA_TOO_OLD,
        ['schema version 0', 'this server supports 1 to 1', 'update the client'],
    ),
    'no name': (
        {'client_id': ''},
        Refusal.BAD_NAME,
        ['client_id', 'is empty', 'give each robot a name'],
    ),
    'a blank name': (
        {'client_id': ' \t'},
        Refusal.BAD_NAME,
        ['client_id', 'is empty', 'give each robot a name'],
    ),
    'a name with a line break': (
        {'client_id': 'a\nb'},
        Refusal.BAD_NAME,
        [r"'a\nb'", 'client_id', 'must be printable'],
    ),
    'a name with an escape': (
        {'client_id': 'a\x1b[31m'},
        Refusal.BAD_NAME,
        [r"'a\x1b[31m'", 'client_id', 'must be printable'],
    ),
    'no reply topic': (
        {'reply_topic': ''},
        Refusal.BAD_NAME,
        ["''", 'reply_topic', 'full name of a ROS topic'],
    ),
    'a relative reply topic': (
        {'reply_topic': 'relative'},
        Refusal.BAD_NAME,
        ["'relative'", 'reply_topic', 'full name of a ROS topic'],
    ),
    'a reply topic with a blank': (
        {'reply_topic': '/a b'},
        Refusal.BAD_NAME,
        ["'/a b'", 'reply_topic', 'full name of a ROS topic'],
    ),
    'an endless reply topic': (
        {'reply_topic': '/' + 'a' * 300},
        Refusal.BAD_NAME,
        ["'/aaa", 'reply_topic', 'full name of a ROS topic'],
    ),
    'the command topic of a robot': (
        {'reply_topic': '/robot1/joint_command'},
        Refusal.BAD_NAME,
        ["'/robot1/joint_command'", '/.../action_chunk', '/.../replies/NAME'],
    ),
    'a topic that only ends like one of chunks': (
        {'reply_topic': '/robot1/my_action_chunk'},
        Refusal.BAD_NAME,
        ["'/robot1/my_action_chunk'", '/.../action_chunk'],
    ),
    'the kind of robot with a line break': (
        {'robot_type': 'so101\n[ERROR] [policy_server]: out of memory'},
        Refusal.BAD_NAME,
        [r"'so101\n[ERROR]", 'robot_type', 'must be printable'],
    ),
    'the kind of robot with an escape': (
        {'robot_type': '\x1b[2J'},
        Refusal.BAD_NAME,
        [r"'\x1b[2J'", 'robot_type', 'must be printable'],
    ),
    'an endless kind of robot': (
        {'robot_type': 'a' * 129},
        Refusal.BAD_NAME,
        ['robot_type', 'at most 128 bytes'],
    ),
    'thousands of other actions': (
        {'action_names': tuple(f'joint_{i}' for i in range(5000))},
        Refusal.ACTION_NAMES,
        ['the names differ', "'joint_31'] and 4968 more", ROBOT_FILE],
    ),
    'other actions': (
        {'action_names': OTHERS},
        Refusal.ACTION_NAMES,
        [f'requested {list(OTHERS)}', f'served {list(JOINTS)}', 'the names differ', ROBOT_FILE],
    ),
    'fewer actions': (
        {'action_names': JOINTS[:2]},
        Refusal.ACTION_NAMES,
        [f'requested {list(JOINTS[:2])}', f'served {list(JOINTS)}', 'names differ', ROBOT_FILE],
    ),
    'an action twice': (
        {'action_names': (*JOINTS[:2], JOINTS[1])},
        Refusal.ACTION_NAMES,
        [f'served {list(JOINTS)}', 'the names differ', ROBOT_FILE],
    ),
    'actions in another order': (
        {'action_names': JOINTS[::-1]},
        Refusal.ACTION_NAMES,
        [f'requested {list(JOINTS[::-1])}', f'served {list(JOINTS)}', 'order differs', ROBOT_FILE],
    ),
    'another state': (
        {'state_names': OTHERS},
        Refusal.STATE_NAMES,
        [f'requested {list(OTHERS)}', f'served {list(JOINTS)}', 'the names differ', ROBOT_FILE],
    ),
    'a state in another order': (
        {'state_names': JOINTS[::-1]},
        Refusal.STATE_NAMES,
        [f'requested {list(JOINTS[::-1])}', f'served {list(JOINTS)}', 'order differs', ROBOT_FILE],
    ),
    'no state': (
        {'state_names': ()},
        Refusal.STATE_NAMES,
        ['requested []', f'served {list(JOINTS)}', 'the names differ', ROBOT_FILE],
    ),
    'no camera': (
        {'cameras': ()},
        Refusal.CAMERAS,
        ['the robot has []', f"needs cameras ['{FRONT}']", 'use these names in the robot file'],
    ),
    'a camera of another name': (
        {'cameras': (CameraSpec('front'),)},
        Refusal.CAMERAS,
        ["the robot has ['front']", f"needs cameras ['{FRONT}']", 'use these names'],
    ),
    'a camera of another kind': (
        {'cameras': (CameraSpec(FRONT, 480, 640, 1),)},
        Refusal.CAMERAS,
        ['the robot has 1', f'{FRONT} must have 3 channels', 'give it a camera of that kind'],
    ),
    'another rate, strictly': (
        {'fps': 50.0, **STRICT},
        Refusal.FPS,
        ['at 50 Hz', 'trained at 30 Hz', 'change fps'],
    ),
    'no rate': ({'fps': 0.0}, Refusal.FPS, ['got 0', '30 Hz', 'must be above 0']),
    'a negative rate': ({'fps': -30.0}, Refusal.FPS, ['got -30', '30 Hz', 'above 0']),
    'a rate of NaN': ({'fps': math.nan}, Refusal.FPS, ['got nan', '30 Hz', 'above 0']),
    'an endless rate': ({'fps': math.inf}, Refusal.FPS, ['got inf', '30 Hz', 'above 0']),
    'another task than the pinned one': (
        {'task': 'dance', **PINNED},
        Refusal.TASK_PINNED,
        ["'dance'", "only 'fold the towel' is served", 'request that task or leave it empty'],
    ),
    'another policy': (
        {'policy': 'other'},
        Refusal.WRONG_POLICY,
        ["'other'", f"served is '{SERVED.fingerprint}'", 'request that one, leave policy empty'],
    ),
    'another version of the policy': (
        {'policy': 'fake@00'},
        Refusal.WRONG_POLICY,
        ["'fake@00'", f"served is '{SERVED.fingerprint}'", 'request that one, leave policy empty'],
    ),
    'no codec': ({'codec': 0}, Refusal.CODEC, ['got 0', '1 (JPEG) or 2 (raw)', 'set codec']),
    'another codec': (
        {'codec': 9},
        Refusal.CODEC,
        ['got 9', '1 (JPEG) or 2 (raw)', 'set codec to jpeg or raw'],
    ),
    'answers from the past': (
        {'reply_deadline_s': -0.1},
        Refusal.BAD_REQUEST,
        ['got -0.1', 'reply_deadline_s', '0 (no bound) or above'],
    ),
    'answers within NaN': (
        {'reply_deadline_s': math.nan},
        Refusal.BAD_REQUEST,
        ['got nan', 'reply_deadline_s', '0 (no bound) or above'],
    ),
    'answers within all time': (
        {'reply_deadline_s': math.inf},
        Refusal.BAD_REQUEST,
        ['got inf', 'reply_deadline_s', '0 (no bound) or above'],
    ),
}


@pytest.mark.parametrize(('given', 'code', 'words'), REFUSED.values(), ids=REFUSED)
def test_a_refusal_says_what_was_asked_what_is_served_and_what_to_change(given, code, words):
    rules = {name: given[name] for name in (*STRICT, *PINNED) if name in given}
    asked = {name: value for name, value in given.items() if name not in rules}
    with pytest.raises(SessionRefused) as refused:
        check(ask(**asked), SERVED, replace(RULES, **rules))
    assert refused.value.code == code
    assert [word for word in words if word not in str(refused.value)] == [], str(refused.value)


RTC = {'wants_rtc': True, 'rtc_execution_horizon': 4}
WARNED = {
    'a rate': ({'fps': 60.0}, {}, ['60 Hz', '30 Hz', '2x trained speed']),
    'a rate that is unknown': ({}, {'trained_fps': 0.0}, ['is unknown', 'compare it']),
    'a rate that is NaN': ({}, {'trained_fps': math.nan}, ['is unknown', 'compare it']),
    'another shape': (
        {'cameras': (CameraSpec(FRONT, 480, 480),)},
        {},
        [FRONT, '480x480', '480x640', 'stretched'],
    ),
    'more cameras': (
        {'cameras': (CameraSpec('side'), CameraSpec(FRONT), CameraSpec('back'))},
        {},
        ["['back', 'side']", 'not used', 'leave them out'],
    ),
    'no guidance': (RTC, {}, ['fake does not support real-time chunking', 'append them']),
    'a long horizon': (
        {**RTC, 'rtc_execution_horizon': 5},
        {'supports_rtc': True},
        ['rtc_execution_horizon 5', '4 is used'],
    ),
    'a note of the policy': ({}, {'notes': ('trained on one robot',)}, ['trained on one robot']),
}


@pytest.mark.parametrize(('asked', 'served', 'words'), WARNED.values(), ids=WARNED)
def test_what_is_only_odd_is_a_warning(asked, served, words):
    (warning,) = check(ask(**asked), replace(SERVED, **served), RULES)
    assert [word for word in words if word not in warning] == [], warning


FITTING = {
    'as trained': ({}, {}, {}),
    'the policy by its id': ({'policy': 'fake'}, {}, {}),
    'the policy by its fingerprint': ({'policy': SERVED.fingerprint}, {}, {}),
    'a camera of any size': ({'cameras': (CameraSpec(FRONT),)}, {}, {}),
    'a camera of the trained shape': ({'cameras': (CameraSpec(FRONT, 240, 320),)}, {}, {}),
    'a policy for any size': ({}, {}, {'cameras': (PolicyCamera(FRONT, 0, 0),)}),
    'a policy without cameras': ({'cameras': ()}, {}, {'cameras': ()}),
    'a rate as the message rounds it': ({'fps': 30.0 + 1e-6}, STRICT, {}),
    'an unknown rate, strictly': ({'fps': 30.0}, STRICT, {}),
    'the pinned task': ({'task': 'fold the towel'}, PINNED, {}),
    'no task': ({'task': ''}, PINNED, {}),
    'another task': ({'task': 'dance'}, {}, {}),
    'a bound for the answer': ({'reply_deadline_s': 0.5}, {}, {}),
    'guidance': (RTC, {}, {'supports_rtc': True}),
    'a horizon without guidance': ({'rtc_execution_horizon': 99}, {}, {'supports_rtc': True}),
    'a name of a human': ({'client_id': 'Lab 3/arm ü #2'}, {}, {}),
}


@pytest.mark.parametrize(('asked', 'rules', 'served'), FITTING.values(), ids=FITTING)
def test_what_fits_is_taken_without_a_word(asked, rules, served):
    assert check(ask(**asked), replace(SERVED, **served), replace(RULES, **rules)) == ()


def test_all_that_is_odd_is_told_at_once():
    asked = ask(fps=60.0, wants_rtc=True, cameras=(CameraSpec(FRONT, 1, 1), CameraSpec('side')))
    assert len(check(asked, replace(SERVED, notes=('one', 'two')), RULES)) == 6
