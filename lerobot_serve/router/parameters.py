"""The parameters of the node policy_router."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.parameters import parameter, ParameterError


@dataclass(frozen=True, slots=True)
class RouterParameters:
    """See docs/parameters.md, which is made from this."""

    slot_a: str = parameter('/slot_a/policy_server', 'full name of the policy server of slot a')
    slot_b: str = parameter('/slot_b/policy_server', 'full name of the policy server of slot b')
    split_percent: int = parameter(
        50,
        'share of the episodes that goes to slot a; applies to new episodes only',
        unit='%',
        low=0,
        high=100,
        live=True,
    )
    remembered_episodes: int = parameter(
        10000, 'episodes whose slot is remembered', low=1, high=10_000_000
    )
    open_timeout_s: float = parameter(
        3.0,
        'time that a slot has to answer when a session is opened',
        unit='s',
        low=0.1,
        high=60.0,
    )
    observation_lifespan_s: float = parameter(
        3.0,
        'a request that could not be delivered for so long is dropped',
        unit='s',
        low=0.05,
        high=60.0,
    )

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other."""
        if self.slot_a == self.slot_b:
            raise ParameterError(f'slot_a and slot_b must differ, both are {self.slot_a!r}')
