# SPDX-License-Identifier: Apache-2.0
"""The parameters of the node sim_robot."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.contract.names import is_topic
from lerobot_serve.parameters import parameter, ParameterError


@dataclass(frozen=True, slots=True)
class SimParameters:
    """The parameters; docs/parameters.md is generated from this class."""

    rate_hz: float = parameter(
        30.0, 'rate of time steps, joint states and images', unit='Hz', low=1.0, high=1000.0
    )
    image_height: int = parameter(224, 'height of both cameras', unit='pixels', low=16, high=4096)
    image_width: int = parameter(224, 'width of both cameras', unit='pixels', low=16, high=4096)
    attempt_timeout_s: float = parameter(
        8.0, 'time limit of an attempt', unit='s', low=0.5, high=3600.0, live=True
    )
    wrist_camera_shift_m: float = parameter(
        0.0,
        'how far the wrist camera sits beyond its place, along the forearm; a policy that was '
        'trained with 0 misses its targets from about 0.05 on',
        unit='m',
        low=-0.1,
        high=0.1,
    )
    reach_m: float = parameter(
        0.02,
        'distance of the hand to the target that counts as reached',
        unit='m',
        low=0.001,
        high=0.1,
        live=True,
    )
    seed: int = parameter(0, 'seed of the target positions', low=0)
    edge_controller: str = parameter(
        'edge_controller',
        'edge controller that is reset at the end of an attempt; empty: none',
    )
    outcome_topic: str = parameter(
        '',
        'full name of a second topic for episode outcomes, ~/outcome of a router; empty: none',
    )

    leader: bool = parameter(
        False,
        'publish a leader arm with which the expert reaches the target: leader/joint_states, and '
        'leader/joy, whose button 0 is the deadman',
    )
    leader_deadman: bool = parameter(
        True, 'whether the deadman of the leader arm is held', live=True
    )

    leader_offset_rad: float = parameter(
        0.0,
        'how far the wrist of the leader arm is turned, as after a wrong calibration; the hand '
        'reaches its target all the same',
        unit='rad',
        low=-2.0,
        high=2.0,
        live=True,
    )
    leader_corrects: bool = parameter(
        False,
        'whether the expert at the leader arm takes over when the hand stops beside the target, '
        'and hands back at the end of the attempt',
        live=True,
    )

    def check(self) -> None:
        """Raise ParameterError for an invalid topic name, or a correction without its means."""
        if self.leader_corrects and not (self.leader and self.edge_controller):
            raise ParameterError(
                'leader_corrects needs a leader arm and an edge controller: set leader to true '
                'and edge_controller to its name'
            )
        if self.outcome_topic and not is_topic(self.outcome_topic):
            raise ParameterError(
                'outcome_topic must be empty or the full name of a topic such as '
                f'/policy_router/outcome, got {self.outcome_topic!r}'
            )
