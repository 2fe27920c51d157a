# SPDX-License-Identifier: Apache-2.0
"""The parameters of the node policy_router except those of its canary."""

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
    failover_slots: str = parameter(
        'none',
        'slots that may take over episodes of the other slot even with share 0 or a policy on '
        'trial; a barred policy never does',
        choices=('none', 'a', 'b', 'both'),
        live=True,
    )
    move_episodes_on_rollback: bool = parameter(
        False,
        'running episodes leave a rolled-back policy with their next request; false lets them '
        'finish, within episode_drain_timeout_s at the latest',
        live=True,
    )
    episode_drain_timeout_s: float = parameter(
        60.0,
        'time limit for running episodes to leave a drained slot or a rolled-back policy; an '
        'eligible slot takes them over with POLICY_CHANGED',
        unit='s',
        low=0.0,
        high=1e6,
        live=True,
    )
    max_remembered_placements: int = parameter(
        10000,
        'episodes whose placement is kept, also across a restart',
        low=1000,
        high=10_000_000,
        on_configure=True,
    )
    state_folder: str = parameter(
        '',
        'folder for the state that survives a restart; empty uses one named after the node below '
        'ROS_HOME (~/.ros)',
        on_configure=True,
    )
    open_session_timeout_s: float = parameter(
        3.0,
        'time limit of a replica for opening a session',
        unit='s',
        low=0.1,
        high=60.0,
        on_configure=True,
    )
    discovery_timeout_s: float = parameter(
        2.0,
        'longest wait of activation for the status of every replica',
        unit='s',
        low=0.0,
        high=60.0,
        live=True,
    )
    observation_lifespan_s: float = parameter(
        3.0,
        'a request that is not delivered within this time is dropped',
        unit='s',
        low=0.05,
        high=60.0,
        on_configure=True,
    )
    reply_timeout_s: float = parameter(
        1.0,
        'a later reply counts as a failure, and the request fails over to another replica or '
        'slot; set it below request_timeout_s of the edge controllers',
        unit='s',
        low=0.02,
        high=60.0,
        live=True,
    )
    standby_replicas: int = parameter(
        1,
        'further replicas of a slot that hold each session ready, for hedging and failover',
        low=0,
        high=7,
        on_configure=True,
    )
    hedge_factor: float = parameter(
        2.0,
        "hedge after hedge_factor x the replica's recent p95; 0 disables",
        low=0.0,
        high=100.0,
        live=True,
    )
    hedge_budget_percent: float = parameter(
        10.0,
        'budget: largest share of requests that are hedged; 0 disables',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    slot_unhealthy_threshold: int = parameter(
        5,
        'failures in a row that make a slot unhealthy: it gets no new episodes',
        low=1,
        high=1000,
        on_configure=True,
    )
    replica_unhealthy_threshold: int = parameter(
        2,
        'failures in a row that make one of several replicas unhealthy: it gets no requests',
        low=1,
        high=1000,
        on_configure=True,
    )
    healthy_threshold: int = parameter(
        3,
        'successes in a row that make a slot or replica healthy again',
        low=1,
        high=1000,
        on_configure=True,
    )
    probe_initial_interval_s: float = parameter(
        2.0,
        'time to the first probe of an unhealthy slot or replica; doubles with each failed probe',
        unit='s',
        low=0.05,
        high=3600.0,
        on_configure=True,
    )
    probe_max_interval_s: float = parameter(
        60.0,
        'longest time between two probes',
        unit='s',
        low=0.05,
        high=86400.0,
        on_configure=True,
    )
    session_grace_s: float = parameter(
        5.0,
        'time for which a silent client keeps its client_id against another client of that name, '
        'and its session without a subscriber of its chunks',
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
    shadow_server: str = parameter(
        '',
        'policy server that receives copies of live requests and drives no robot; empty for none',
        on_configure=True,
    )
    shadow_sample_percent: float = parameter(
        100.0,
        'share of the requests that are copied to the shadow',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    shadow_spread_percent: float = parameter(
        5.0,
        'share of the shadowed requests that are also sent to a stochastic live policy a second '
        'time, to measure its own spread',
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
        'where every request went and its result', on_configure=True
    )
    trace_file_limit_mb: int = trace_settings.trace_file_limit_mb(on_configure=True)
    trace_max_files: int = trace_settings.trace_max_files(on_configure=True)

    @property
    def spare_slots(self) -> frozenset[str]:
        """The slots that take over."""
        return frozenset(
            {'a', 'b'} if self.failover_slots == 'both' else {self.failover_slots} - {'none'}
        )

    def within(self, namespace: str) -> Self:
        """Return them with the full names of all servers. Raises ParameterError."""
        slots = ('slot_a', 'slot_b', 'slot_prod')
        full = {n: tuple(full_name(namespace, s) for s in getattr(self, n)) for n in slots}
        shadow = full_name(namespace, self.shadow_server) if self.shadow_server else ''
        named = replace(self, **full, shadow_server=shadow)
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
                        f'{server} is listed in slot_{slot} and in {named[server]}; list each '
                        'policy server once'
                    )
                named[server] = f'slot_{slot}'
        if self.shadow_server:
            check_server('shadow_server', self.shadow_server)
            if self.shadow_server in named:
                raise ParameterError(
                    f'shadow_server {self.shadow_server} is also listed in '
                    f'{named[self.shadow_server]}; a shadow needs a policy server of its own'
                )
        if self.probe_max_interval_s < self.probe_initial_interval_s:
            raise ParameterError(
                'probe_max_interval_s must be at least probe_initial_interval_s '
                f'({self.probe_initial_interval_s:g}), got {self.probe_max_interval_s:g}'
            )
