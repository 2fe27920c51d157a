# SPDX-License-Identifier: Apache-2.0
"""The settings of the door for LeRobot's RobotClient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lerobot_serve.gateway.callers.mapping import EQUAL_NAMES, NameMapping, read_mapping
from lerobot_serve.gateway.grpc_server.server import CONNECTIONS

ANY_POLICY = '*'
MB = 10**6


@dataclass(frozen=True, slots=True)
class LeRobotSettings:
    """
    mapping                 names of clients against those of the policy
    action_order_confirmed  the operator knows that action columns fit the robots
    policy_names            pretrained_name_or_path that are accepted beside the policy's own; *
                            accepts every one
    max_observation_bytes   longest pickle of an observation
    max_connections         open connections; gRPC refuses further ones
    observation_wait_s      GetActions answers empty after it, as LeRobot's server does
    observation_limit_s     longest time from the first to the last piece of an observation
    refusal_pause_s         a client without a session calls again at once: its refusal waits
    """

    mapping: NameMapping = EQUAL_NAMES
    action_order_confirmed: bool = False
    policy_names: tuple[str, ...] = ()
    max_observation_bytes: int = 32 * MB
    max_connections: int = CONNECTIONS
    observation_wait_s: float = 2.0
    observation_limit_s: float = 10.0
    refusal_pause_s: float = 0.5


def read_settings(given: Mapping[str, Any]) -> LeRobotSettings:
    """Return the settings from the parameters of the door. Raises UserError."""
    return LeRobotSettings(
        mapping=read_mapping(given['mapping']),
        action_order_confirmed=given['action_order_confirmed'],
        policy_names=tuple(name for name in given['policy_names'] if name),
        max_observation_bytes=given['max_message_mb'] * MB,
        max_connections=given['max_connections'],
    )
