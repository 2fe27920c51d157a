# SPDX-License-Identifier: Apache-2.0
"""From an edge's commands through its requests to what a shadow would have done instead."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.edge.controller_rig import arm, STEP_NS, STEP_S
from support.edge.requester_rig import Bench
from support.router.shadow_rig import LIVE, SHADOW, World

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.execution_report import (
    ExecutionReport,
    find_execution_report,
)
from lerobot_serve.contract.data_path.header import Envelope, read_envelope
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.edge import wiring
from lerobot_serve.edge.decisions import RobotDecisions
from lerobot_serve.edge.inputs.state_reader import RobotState
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.edge.session.transport.fake_transport import reply_bytes
from lerobot_serve.edge.session_request import make_session_request
from lerobot_serve.router.shadow.comparator import ShadowComparison

CHUNK_ROWS, JOINTS = 10, 3
# what the shadow does otherwise
APART = 0.125


class Fleet:
    """One robot, whose chunks take a few steps to come, and a router's book about it."""

    def __init__(self, folder: Path, *, interpolation: int, delay_steps: int) -> None:
        self.robot, self.delay_steps = arm(joints=JOINTS), delay_steps
        self.parameters = EdgeParameters(interpolation_multiplier=interpolation)
        self.requests = Bench(step_s=STEP_S, merge_mode='replace', request_threshold_s=6 * STEP_S)
        self.controller = wiring.make_controller(
            self.parameters, self.robot, RobotDecisions(), self.requests.actions, lambda: None
        )
        self.requests.requester._connect()
        self.requests.transport.send = self.on_request
        for late in range(wiring.START_SAMPLES, 0, -1):
            # where it stands is known by the time that it is asked for
            self.controller.step(self.requests.now_ns - late * STEP_NS, self.sense)
        self.world = World(folder)
        self.world.book.on_session(self.session_request())
        self.due: list[tuple[int, bytes]] = []
        self.played: dict[tuple[int, int], float] = {}
        self.found: list[ShadowComparison] = []

    def session_request(self) -> OpenSessionRequest:
        return make_session_request(
            self.parameters,
            self.robot,
            client_id='robot_1',
            instance=1,
            epoch=0,
            task='',
        )

    def on_request(self, raw: bytes) -> None:
        """Be router, policy and shadow at once."""
        start, request = read_envelope(raw), wire_observation.decode(raw)
        book, now_ns = self.world.book, self.requests.now_ns
        book.on_executed(start, find_execution_report(raw))
        book.on_live_request(start, now_ns)
        first = 0.03125 * start.header.seq
        rows = first + 0.0625 * np.arange(CHUNK_ROWS, dtype=np.float32)[:, None] * np.ones(JOINTS)
        live, shadow = (
            reply_bytes(request, rows + more, policy=policy)
            for more, policy in ((0, LIVE), (APART, SHADOW))
        )
        book.on_live_chunk(wire_chunk.decode(live), now_ns)
        book.on_shadow_chunk(wire_chunk.decode(shadow), now_ns + STEP_NS)
        self.due.append((now_ns + self.delay_steps * STEP_NS, live))

    def step(self) -> None:
        """Let one control step of the policy pass."""
        requests, pipeline = self.requests, self.requests.pipeline
        while self.due and self.due[0][0] <= requests.now_ns:
            pipeline.on_reply(self.due.pop(0)[1], requests.now_ns, requests.settings)
        requests.inputs.deposit('state', np.zeros(3, np.float32), requests.now_ns)
        is_low = requests.requester.playable_s <= requests.settings.request_threshold_s
        if is_low and not requests.session.in_flight:
            requests.executed = self.controller.take_executed()
            pipeline.send_request(requests.settings)
        for _ in range(self.parameters.interpolation_multiplier):
            executed, _ = self.controller.step(requests.now_ns, self.sense)
            if executed and executed.planned:
                command = executed.judgement.command
                key = executed.planned.source.seq, executed.planned.row
                self.played[key] = float(command[0])
            requests.now_ns += STEP_NS // self.parameters.interpolation_multiplier
        self.found += self.world.book.poll(requests.now_ns)

    def sense(self) -> RobotState:
        return RobotState(np.zeros(JOINTS), np.zeros(JOINTS))


@pytest.mark.parametrize('interpolation', [1, 4])
@pytest.mark.parametrize('delay_steps', [0, 3])
def test_each_row_that_was_played_is_compared_with_that_of_the_shadow(
    tmp_path, interpolation, delay_steps
):
    fleet = Fleet(tmp_path, interpolation=interpolation, delay_steps=delay_steps)
    for _ in range(120):
        fleet.step()
    assert len(fleet.found) > 10
    # the last ones are not over yet
    last = fleet.found[-1].seq
    expected = {}
    for seq, _ in fleet.played:
        if seq <= last:
            expected[seq] = expected.get(seq, 0) + 1
    assert {found.seq: found.rows for found in fleet.found} == expected
    for found in fleet.found:
        assert found.divergence == pytest.approx(APART, abs=1e-6)
        assert found.per_action == pytest.approx((APART,) * JOINTS, abs=1e-6)
        assert (found.limits_known, found.cage_would_trip) == (True, False)
        assert (found.live_policy, found.shadow_policy) == (LIVE, SHADOW)
    assert fleet.world.drops == {}


def test_a_request_that_is_lost_costs_its_rows_and_nothing_else(tmp_path):
    fleet = Fleet(tmp_path, interpolation=1, delay_steps=1)
    book, lost = fleet.world.book, []
    on_executed = book.on_executed

    def lossy(start: Envelope, executed: ExecutionReport) -> None:
        if start.header.seq % 4 == 0:
            lost.extend(executed.runs)
        else:
            on_executed(start, executed)

    book.on_executed = lossy
    for _ in range(150):
        fleet.step()
    assert lost
    compared = sum(found.rows for found in fleet.found)
    assert compared < len(fleet.played)
    for found in fleet.found:
        assert found.divergence == pytest.approx(APART, abs=1e-6)
        assert not found.cage_would_trip
    assert set(fleet.world.drops) <= {'shadow_unmatched'}
