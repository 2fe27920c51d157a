"""The parameters of the node policy_router but for those of its canary."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.router.server_names import check_server, full_name
from lerobot_serve.telemetry import metrics_parameters as endpoint_settings
from lerobot_serve.trace.writing import trace_parameters as trace_settings

REPLICAS_HELP = (
    'policy servers of slot {}, one or more of the same policy; a name without / in front is '
    "relative to the router's namespace"
)


@dataclass(frozen=True, slots=True)
class RoutingParameters:
    """See docs/parameters.md, which is made from this."""

    autostart: bool = parameter(
        True, 'configure and activate at start; false waits for a lifecycle manager'
    )
    slot_a: tuple[str, ...] = parameter(
        ('slot_a/policy_server',),
        REPLICAS_HELP.format('a, the policy that is in use'),
        on_configure=True,
    )
    slot_b: tuple[str, ...] = parameter(
        ('slot_b/policy_server',), REPLICAS_HELP.format('b, the candidate'), on_configure=True
    )
    slot_prod: tuple[str, ...] = parameter(
        (),
        REPLICAS_HELP.format(
            'prod; with it there is no split, and slot_a and slot_b are not used'
        ),
        on_configure=True,
    )
    split_percent: int = parameter(
        50,
        'share of the episodes that goes to slot a; applies to new episodes only',
        unit='%',
        low=0,
        high=100,
        live=True,
    )
    spare: str = parameter(
        'none',
        'slot that takes over from the other one though its share is 0 or its policy on trial; '
        'a policy that a verdict bars never does',
        choices=('none', 'a', 'b', 'both'),
        live=True,
    )
    rollback_now: bool = parameter(
        False,
        'whether running episodes leave a policy that is rolled back with their next request; '
        'otherwise at their end, after leave_within_s at the latest',
        live=True,
    )
    leave_within_s: float = parameter(
        60.0,
        'running episodes leave a slot that is drained, or whose policy is rolled back, after '
        'this time at the latest; with POLICY_CHANGED where another slot may have them',
        unit='s',
        low=0.0,
        high=1e6,
        live=True,
    )
    remembered_episodes: int = parameter(
        10000,
        'episodes whose slot is remembered, also by a router that is started again',
        low=1000,
        high=10_000_000,
        on_configure=True,
    )
    state_folder: str = parameter(
        '',
        'folder for what a router that is started again has to know; empty takes one named after '
        'the node below ROS_HOME (~/.ros)',
        on_configure=True,
    )
    open_timeout_s: float = parameter(
        3.0,
        'time that a replica has to answer when a session is opened',
        unit='s',
        low=0.1,
        high=60.0,
        on_configure=True,
    )
    settle_s: float = parameter(
        2.0,
        'how long activating waits to hear of every replica',
        unit='s',
        low=0.0,
        high=60.0,
        live=True,
    )
    observation_lifespan_s: float = parameter(
        3.0,
        'a request that could not be delivered for so long is dropped',
        unit='s',
        low=0.05,
        high=60.0,
        on_configure=True,
    )
    answer_timeout_s: float = parameter(
        1.0,
        'an answer that is later is a failure, and another replica or slot is asked; should be '
        'below request_timeout_s of the robots',
        unit='s',
        low=0.02,
        high=60.0,
        live=True,
    )
    standby_replicas: int = parameter(
        1,
        'further replicas of a slot that keep the session of each robot ready, for second tries '
        'and for when the first one is gone',
        low=0,
        high=7,
        on_configure=True,
    )
    hedge_factor: float = parameter(
        2.0,
        "a second replica is asked when an answer takes so many times the replica's recent p95; 0 "
        'for never',
        low=0.0,
        high=100.0,
        live=True,
    )
    hedge_percent: float = parameter(
        10.0,
        'at most so many of the requests are sent to a second replica',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    failures_to_drain: int = parameter(
        5,
        'failures in a row after which a slot gets no new episodes',
        low=1,
        high=1000,
        on_configure=True,
    )
    replica_failures: int = parameter(
        2,
        'failures in a row after which one of several replicas is not asked any more',
        low=1,
        high=1000,
        on_configure=True,
    )
    trials_to_return: int = parameter(
        3,
        'clean answers in a row that bring a slot or replica back',
        low=1,
        high=1000,
        on_configure=True,
    )
    trial_after_s: float = parameter(
        2.0,
        'time until a slot or replica that failed is tried again; doubles with each failed trial',
        unit='s',
        low=0.05,
        high=3600.0,
        on_configure=True,
    )
    trial_max_s: float = parameter(
        60.0,
        'longest time between two trials',
        unit='s',
        low=0.05,
        high=86400.0,
        on_configure=True,
    )
    session_grace_s: float = parameter(
        5.0,
        'how long a silent robot keeps its name against another one of that name, and its session '
        'when nobody listens for its chunks any more',
        unit='s',
        low=0.0,
        high=3600.0,
        on_configure=True,
    )
    session_idle_s: float = parameter(
        60.0,
        'a session without requests is closed after this',
        unit='s',
        low=1.0,
        high=86400.0,
        on_configure=True,
    )
    shadow_policy: str = parameter(
        '',
        'name of a policy server that sees what robots see and drives none; empty for none',
        on_configure=True,
    )
    shadow_percent: float = parameter(
        100.0,
        'share of the requests that the shadow sees',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    shadow_spread_percent: float = parameter(
        5.0,
        'share of the shadowed requests for which a policy that draws random numbers is asked '
        'twice, to know its own spread',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    shadow_minimum_hours: float = parameter(
        0.0,
        'hours in shadow that the policy of slot b needs before it may take episodes',
        unit='h',
        low=0.0,
        high=10000.0,
        live=True,
    )
    shadow_minimum_episodes: int = parameter(
        0,
        'episodes in shadow that the policy of slot b needs before it may take episodes',
        low=0,
        high=1_000_000_000,
        live=True,
    )

    metrics_port: int = endpoint_settings.metrics_port()
    metrics_address: str = endpoint_settings.metrics_address()
    trace_folder: str = trace_settings.trace_folder(
        'where every request went and how it was answered', on_configure=True
    )
    trace_limit_mb: int = trace_settings.trace_file_limit_mb(on_configure=True)
    trace_files: int = trace_settings.trace_max_files(on_configure=True)

    @property
    def spare_slots(self) -> frozenset[str]:
        """The slots that take over."""
        return frozenset({'a', 'b'} if self.spare == 'both' else {self.spare} - {'none'})

    def within(self, namespace: str) -> Self:
        """Return them with the full names of all servers. Raises ParameterError."""
        slots = ('slot_a', 'slot_b', 'slot_prod')
        full = {n: tuple(full_name(namespace, s) for s in getattr(self, n)) for n in slots}
        shadow = full_name(namespace, self.shadow_policy) if self.shadow_policy else ''
        named = replace(self, **full, shadow_policy=shadow)
        named.check()
        return named

    @property
    def slots(self) -> dict[str, tuple[str, ...]]:
        """The servers of each slot."""
        return {'prod': self.slot_prod} if self.slot_prod else {'a': self.slot_a, 'b': self.slot_b}

    @property
    def servers(self) -> tuple[str, ...]:
        """Every replica of every slot."""
        return tuple(server for servers in self.slots.values() for server in servers)

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other."""
        named: dict[str, str] = {}
        for slot, servers in self.slots.items():
            if not servers:
                raise ParameterError(f'slot_{slot} must name at least one policy server')
            for server in servers:
                check_server(f'slot_{slot}', server)
                if server in named:
                    raise ParameterError(
                        f'{server} stands in slot_{slot} and in {named[server]}; a policy server '
                        'serves in one place'
                    )
                named[server] = f'slot_{slot}'
        if self.shadow_policy:
            check_server('shadow_policy', self.shadow_policy)
            if self.shadow_policy in named:
                raise ParameterError(
                    f'shadow_policy {self.shadow_policy} stands in {named[self.shadow_policy]}, '
                    'too; a shadow needs a policy server of its own'
                )
        if self.trial_max_s < self.trial_after_s:
            raise ParameterError(
                f'trial_max_s must be at least trial_after_s ({self.trial_after_s:g}), '
                f'got {self.trial_max_s:g}'
            )
