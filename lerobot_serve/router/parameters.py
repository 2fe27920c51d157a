# SPDX-License-Identifier: Apache-2.0
"""The parameters of the node policy_router."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.router.canary.guards import GuardLimits
from lerobot_serve.router.canary.plan import CanaryPlan, parse_plan, Terms
from lerobot_serve.router.replicas.slot_stats import HOUR_NS
from lerobot_serve.router.routing_parameters import RoutingParameters


@dataclass(frozen=True, slots=True)
class RouterParameters(RoutingParameters):
    """See docs/parameters.md, which is made from this."""

    canary_plan: tuple[str, ...] = parameter(
        (),
        'steps of the share of slot b [%], for example 5, 25, 50:40:600, 100; behind a colon the '
        'minimum of episodes and of seconds at that step; empty for no canary',
        name='canary.plan',
        live=True,
    )
    canary_minimum_episodes: int = parameter(
        20,
        'episodes of slot b that each step takes at least',
        name='canary.minimum_episodes',
        low=1,
        high=1_000_000,
        live=True,
    )
    canary_minimum_step_s: float = parameter(
        60.0,
        'time that each step takes at least',
        name='canary.minimum_step_s',
        unit='s',
        low=0.0,
        high=1e7,
        live=True,
    )
    canary_margin: float = parameter(
        0.1,
        "slot b is promoted when its success rate is shown to be less than this below slot a's",
        name='canary.margin',
        low=0.0,
        high=0.5,
        live=True,
    )
    canary_false_promotion: float = parameter(
        0.05,
        'highest probability of promoting a policy that is worse by more than the margin',
        name='canary.false_promotion',
        low=1e-6,
        high=0.5,
        live=True,
    )
    canary_false_rollback: float = parameter(
        0.05,
        'highest probability of rolling back, for its success rate, a policy that is not worse',
        name='canary.false_rollback',
        low=1e-6,
        high=0.5,
        live=True,
    )
    canary_block_episodes: int = parameter(
        5,
        'consecutive episodes of slot b that may fail for one cause; the comparison counts each '
        'block as one observation. Larger blocks tolerate longer runs and decide later',
        name='canary.block_episodes',
        low=1,
        high=1000,
        live=True,
    )
    canary_outcome_timeout_hours: float = parameter(
        24.0,
        'how long after its end the outcome of an episode may be reported',
        name='canary.outcome_timeout_hours',
        unit='h',
        low=0.001,
        high=720.0,
        live=True,
    )
    canary_max_failed_percent: float = parameter(
        2.0,
        "rolls back when more of the requests of slot b fail now, and twice slot a's",
        name='canary.max_failed_percent',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    canary_max_latency_ratio: float = parameter(
        2.0,
        "rolls back when slot b's latency p95 exceeds this many times slot a's; 0 disables",
        name='canary.max_latency_ratio',
        low=0.0,
        high=1000.0,
        live=True,
    )
    canary_max_trip_percent: float = parameter(
        1.0,
        "rolls back when the cage now changes more of the commands in slot b, and twice slot a's",
        name='canary.max_trip_percent',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    canary_max_fallback_percent: float = parameter(
        5.0,
        'rolls back when more of the commands in slot b come from the fallback ladder because '
        "actions were missing or stale, and twice slot a's",
        name='canary.max_fallback_percent',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    canary_max_divergence: float = parameter(
        0.0,
        "rolls back when slot b's policy, in shadow, diverged by more than this many of slot a's "
        'own spreads from the executed actions; 0 disables',
        name='canary.max_divergence',
        low=0.0,
        high=1e6,
        live=True,
    )
    canary_minimum_replies: int = parameter(
        100,
        'replies of each slot that a step needs before failures and latency are evaluated',
        name='canary.minimum_replies',
        low=20,
        high=1_000_000,
        live=True,
    )
    canary_minimum_commands: int = parameter(
        3000,
        'commands of robots in slot b that a step needs before the shares of cage trips and '
        'fallbacks are evaluated',
        name='canary.minimum_commands',
        low=100,
        high=1_000_000_000,
        live=True,
    )

    @property
    def plan(self) -> CanaryPlan | None:
        """The canary's steps. Raises ParameterError."""
        return parse_plan(
            self.canary_plan,
            minimum_episodes=self.canary_minimum_episodes,
            minimum_s=self.canary_minimum_step_s,
            name='canary.plan',
        )

    @property
    def terms(self) -> Terms:
        """The error bounds of the canary. Raises ParameterError."""
        return Terms(
            self.canary_margin,
            self.canary_false_promotion,
            self.canary_false_rollback,
            self.canary_block_episodes,
        )

    @property
    def verdict_within_ns(self) -> int:
        return int(self.canary_outcome_timeout_hours * HOUR_NS)

    @property
    def limits(self) -> GuardLimits:
        """The canary's guards."""
        return GuardLimits(
            self.canary_max_failed_percent,
            self.canary_max_latency_ratio,
            self.canary_max_trip_percent,
            self.canary_max_fallback_percent,
            self.canary_max_divergence,
            self.canary_minimum_replies,
            self.canary_minimum_commands,
        )

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other."""
        RoutingParameters.check(self)
        if self.plan and self.slot_prod:
            raise ParameterError('canary.plan needs slot_a and slot_b, and slot_prod is set')
