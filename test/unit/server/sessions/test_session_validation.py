# SPDX-License-Identifier: Apache-2.0
"""The contract: what cannot match is refused before anything moves, what is odd is a warning."""

from __future__ import annotations

import math

import pytest
from support.replacing import replace
from support.server.session_rig import ask, FRONT, RULES, SERVED

from lerobot_serve.contract.records import CameraSpec, OpenSessionRequest
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


def check(
    asked: OpenSessionRequest, served: PolicyDescription, rules: ServerParameters
) -> tuple[str, ...]:
    check_version(asked)
    check_names(asked)
    return check_session_request(asked, served, rules)


# with those of test/golden/refusals/sessions.txt: what is asked, and of the rules what differs
REFUSED = [
    ({'reply_topic': '/' + 'a' * 300},),
    ({'action_names': tuple(f'joint_{i}' for i in range(5000))},),
    ({'cameras': (CameraSpec('front'),)},),
    ({'cameras': (CameraSpec(FRONT, 480, 640, 1),)},),
    *(({'fps': each},) for each in (math.nan, math.inf)),
    *(({'reply_deadline_s': each},) for each in (math.nan, math.inf)),
]


@pytest.mark.golden
def test_a_refusal_says_what_was_asked_what_is_served_and_what_to_change(golden):
    def refuse(given: dict[str, object]) -> None:
        rules = {name: given[name] for name in (*STRICT, *PINNED) if name in given}
        asked = {name: value for name, value in given.items() if name not in rules}
        check(ask(**asked), SERVED, replace(RULES, **rules))

    def told(error: SessionRefused) -> str:
        return f'{error.code.name}: {error}'

    golden.holds_refusals('sessions', refuse, SessionRefused, told, REFUSED)


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
