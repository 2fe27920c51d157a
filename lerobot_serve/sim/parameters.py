# SPDX-License-Identifier: Apache-2.0
"""The parameters of the node sim_robot."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.wire.names import is_topic


@dataclass(frozen=True, slots=True)
class SimParameters:
    """See docs/parameters.md, which is made from this."""

    rate_hz: float = parameter(
        30.0, 'steps, joint states and images a second', unit='Hz', low=1.0, high=1000.0
    )
    image_height: int = parameter(224, 'height of both cameras', unit='pixels', low=16, high=4096)
    image_width: int = parameter(224, 'width of both cameras', unit='pixels', low=16, high=4096)
    attempt_timeout_s: float = parameter(
        8.0, 'an attempt fails after this', unit='s', low=0.5, high=3600.0, live=True
    )
    seed: int = parameter(0, 'seed of the target positions', low=0)
    edge_controller: str = parameter(
        'edge_controller',
        'edge controller whose episode ends with an attempt; empty: no reset is called',
    )
    outcome_topic: str = parameter(
        '',
        'full name of a second topic for episode outcomes: ~/outcome of a router; empty: only '
        'episode_outcome',
    )

    def check(self) -> None:
        """Raise ParameterError for a topic that cannot be one."""
        if self.outcome_topic and not is_topic(self.outcome_topic):
            raise ParameterError(
                'outcome_topic must be the full name of a topic, like /policy_router/outcome, or '
                f'empty, got {self.outcome_topic!r}'
            )
