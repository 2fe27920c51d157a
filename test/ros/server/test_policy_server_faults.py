# SPDX-License-Identifier: Apache-2.0
"""One robot's trouble, or the policy's with one robot: the others notice nothing."""

from __future__ import annotations

import numpy as np
import pytest
from support.replacing import replace

from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.schema import Status

STATE = np.linspace(-1, 1, 6, dtype=np.float32)
TROUBLES = {
    'raise': (Status.POLICY_ERROR, 'RuntimeError: raised on purpose', 'policy_error'),
    'nan': (Status.NOT_FINITE, 'NaN or infinity', 'not_finite'),
    'fat': (Status.NOT_FINITE, 'NaN or infinity', 'not_finite'),
    'short': (Status.POLICY_ERROR, 'rows x 6 actions, got (30, 5)', 'policy_error'),
}


@pytest.mark.parametrize('scheduler', ['round_robin', 'dynamic_batching'])
def test_what_the_policy_does_to_one_robot_is_told_to_that_one_alone(rig, scheduler, log_of_rig):
    rig.steering.turns.close_gate()
    rig.start(policy_kind='steered', scheduler=scheduler)
    first, *poisoned = rig.clients(1 + len(TROUBLES))
    healthy = rig.client('healthy')
    first.request()
    rig.wait_for_events('predict')
    for number, (robot, task) in enumerate(zip(poisoned, TROUBLES, strict=True), 2):
        robot.request(task=task)
        rig.wait_for_requests(number)
    healthy.request(state=STATE[None])
    rig.wait_for_requests(2 + len(TROUBLES))
    rig.steering.turns.open_gate()
    assert first.take().status == Status.OK
    for robot, (code, words, _) in zip(poisoned, TROUBLES.values(), strict=True):
        chunk = robot.take()
        assert (chunk.status, chunk.robot.size, chunk.model.size) == (code, 0, 0)
        assert words in chunk.status_text
    chunk = healthy.take()
    assert (chunk.status, chunk.status_text) == (Status.OK, '')
    assert np.array_equal(chunk.robot[0], STATE)
    assert rig.drops() == {'policy_error': 2, 'not_finite': 2}
    # nobody is the worse for it later
    for robot in (first, healthy, *poisoned):
        assert robot.round_trip().status == Status.OK
    assert rig.state() == 'active'
    assert 'Traceback' not in log_of_rig('policy_server')


def rubbish(client) -> list[bytes]:
    """Return requests that nobody can make sense of, made from one that everybody can."""
    good = client.observation()
    raw = wire_observation.encode(good)
    generator = np.random.default_rng(5)
    return [
        b'',
        raw[:3],
        raw[:40],
        raw[: len(raw) // 2],
        raw[:-1],
        b'\xff' * 200,
        generator.bytes(5000),
        raw[:4] + generator.bytes(len(raw)),
        wire_observation.encode(replace(good, header=replace(good.header, msg_type=2))),
        wire_observation.encode(replace(good, state=np.full((1, 6), np.inf, np.float32))),
    ]


def test_rubbish_from_one_robot_does_not_disturb_another(rig, log_of_rig):
    process = rig.start(policy_kind='steered')
    vandal, client = rig.clients(2)
    for raw in rubbish(vandal):
        vandal.send(raw)
        chunk = client.round_trip(state=STATE[None])
        assert chunk.status == Status.OK
        assert np.array_equal(chunk.robot[0], STATE)
    rig.wait_for_drop('not_finite')
    drops = rig.drops()
    for reason in ('encapsulation', 'truncated', 'wrong_type'):
        assert drops[reason] >= 1
    assert process.poll() is None
    assert 'Traceback' not in log_of_rig('policy_server')
