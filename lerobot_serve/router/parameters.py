# SPDX-License-Identifier: Apache-2.0
"""The parameters of the node policy_router."""

from __future__ import annotations

from dataclasses import dataclass, replace
import math
from typing import Self

from lerobot_serve import quotas as quota_rules
from lerobot_serve.contract.limits import SINGLE_SLOT
from lerobot_serve.contract.names import full_name, is_topic, node_name, OVER_ZENOH
from lerobot_serve.local import local_parameters as local
from lerobot_serve.parameters import parameter, ParameterError
from lerobot_serve.quotas import parse_quotas, QuotaRule
from lerobot_serve.router.canary.plan import CanaryPlan, parse_plan
from lerobot_serve.router.storage.address import check_address
from lerobot_serve.telemetry import metrics_parameters as endpoint_settings
from lerobot_serve.trace.writing import open_trace as trace_settings
from lerobot_serve.zenoh import zenoh_parameters as zenoh

HOUR_NS = 3_600 * 10**9
REPLICAS_HELP = (
    'policy servers of slot {}, one or more of the same policy; a name without leading / is '
    "relative to the router's namespace"
)


@dataclass(frozen=True, slots=True)
class RouterParameters:
    """The parameters; docs/parameters.md is generated from this class."""

    autostart: bool = parameter(
        True, 'configure and activate at start; false waits for a lifecycle manager'
    )
    slot_a: tuple[str, ...] = parameter(
        ('slot_a/policy_server',),
        REPLICAS_HELP.format('a, the champion'),
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
        'share of new episodes to slot a',
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
        'finish within episode_drain_timeout_s',
        live=True,
    )
    episode_drain_timeout_s: float = parameter(
        60.0,
        'time limit for running episodes to leave a drained slot or a rolled-back policy; they '
        'move to an eligible slot with POLICY_CHANGED',
        unit='s',
        low=0.0,
        high=1e6,
        live=True,
    )
    max_remembered_placements: int = parameter(
        10000,
        'number of episodes whose placement is kept, also across a restart',
        low=1000,
        high=10_000_000,
        on_configure=True,
    )
    state_folder: str = parameter(
        '',
        'folder for the state that survives a restart; empty: a folder named after the node '
        'below ROS_HOME (~/.ros)',
        on_configure=True,
    )
    state_url: str = parameter(
        '',
        'PostgreSQL database that holds the state of all routers of a site in place of the state '
        'folder, as postgresql://USER@HOST:5432/DATABASE; the password is in the file that the '
        'environment variable PGPASSFILE names',
        on_configure=True,
    )
    state_site: str = parameter(
        'default',
        'routers with the same state_url and state_site serve one fleet, with one split and one '
        'rollout',
        on_configure=True,
    )
    state_import: str = parameter(
        'ask',
        'what comes along where state_url or state_site name another state than the one that this '
        'router used last: last: its decisions; none: nothing; ask: those of its file into a '
        'shared state that has none, otherwise the start is refused',
        choices=('ask', 'last', 'none'),
        on_configure=True,
    )
    open_session_timeout_s: float = parameter(
        3.0,
        'time limit for a replica to open a session',
        unit='s',
        low=0.1,
        high=60.0,
        on_configure=True,
    )
    discovery_timeout_s: float = parameter(
        2.0,
        'time limit of activation to receive the status of every replica',
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
        'consecutive failures until a slot is unhealthy and receives no new episodes',
        low=1,
        high=1000,
        on_configure=True,
    )
    replica_unhealthy_threshold: int = parameter(
        2,
        'consecutive failures until one of several replicas is unhealthy and receives no requests',
        low=1,
        high=1000,
        on_configure=True,
    )
    healthy_threshold: int = parameter(
        3,
        'consecutive successes until a slot or replica is healthy again',
        low=1,
        high=1000,
        on_configure=True,
    )
    probe_initial_interval_s: float = parameter(
        2.0,
        'time until the first probe of an unhealthy slot or replica; doubles with each failed '
        'probe',
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
        'time for which the client_id of a silent client is reserved against others, and its '
        'session is kept without a subscriber of its chunks',
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
        'policy server that receives copies of live requests; its chunks never reach a robot; '
        'empty: no shadow',
        on_configure=True,
    )
    shadow_sample_percent: float = parameter(
        100.0,
        'share of requests that are copied to the shadow',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    shadow_spread_percent: float = parameter(
        5.0,
        'share of shadowed requests that are sent to a stochastic live policy a second time, to '
        'measure its spread',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    shadow_minimum_hours: float = parameter(
        0.0,
        'hours in shadow that the policy of slot b needs before it receives episodes',
        unit='h',
        low=0.0,
        high=10000.0,
        live=True,
    )
    shadow_minimum_episodes: int = parameter(
        0,
        'episodes in shadow that the policy of slot b needs before it receives episodes',
        low=0,
        high=1_000_000_000,
        live=True,
    )

    gate_folder: str = parameter(
        '',
        'folder of gate records (`lerobot-serve gate --records`); the policy of slot b receives '
        'no episode without one that passed against the policy of slot a; empty: no gate',
        on_configure=True,
    )

    quotas: tuple[str, ...] = quota_rules.quotas()
    quota_burst_s: float = quota_rules.quota_burst_s()
    link: str = zenoh.link()
    local_path: bool = local.local_path(
        True, 'use the local path to replicas of this host, and offer it to clients of it'
    )
    local_group: str = local.local_group()
    local_folder: str = local.local_folder()
    zenoh_listen: tuple[str, ...] = zenoh.zenoh_listen()
    zenoh_connect: tuple[str, ...] = zenoh.zenoh_connect()
    zenoh_site: str = zenoh.zenoh_site()
    zenoh_keys: str = zenoh.zenoh_keys()
    metrics_port: int = endpoint_settings.metrics_port()
    metrics_address: str = endpoint_settings.metrics_address()
    trace_folder: str = trace_settings.trace_folder(
        'the route and the result of every request', on_configure=True
    )
    trace_file_limit_mb: int = trace_settings.trace_file_limit_mb(on_configure=True)
    trace_max_files: int = trace_settings.trace_max_files(on_configure=True)
    canary_plan: tuple[str, ...] = parameter(
        (),
        'steps as SHARE[:EPISODES[:SECONDS]], for example 5, 25, 50:40:600, 100: share of slot b '
        '[%] with minimum episodes and time of the step; empty: no canary',
        name='canary.plan',
        live=True,
    )
    canary_minimum_episodes: int = parameter(
        20,
        'minimum episodes of slot b in each step',
        name='canary.minimum_episodes',
        low=1,
        high=1_000_000,
        live=True,
    )
    canary_minimum_step_s: float = parameter(
        60.0,
        'minimum duration of each step',
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
        'largest probability of promoting a policy that is worse by the margin or more',
        name='canary.false_promotion',
        low=1e-6,
        high=0.5,
        live=True,
    )
    canary_false_rollback: float = parameter(
        0.05,
        'largest probability of rolling back, for its success rate, a policy that is not worse',
        name='canary.false_rollback',
        low=1e-6,
        high=0.5,
        live=True,
    )
    canary_block_episodes: int = parameter(
        5,
        'consecutive episodes of slot b, of any robots, that may fail for one cause; the '
        'comparison counts each block as one observation. Larger blocks tolerate longer runs and '
        'decide later. Runs of one robot are measured; this length is assumed before any is seen',
        name='canary.block_episodes',
        low=1,
        high=1000,
        live=True,
    )
    canary_watch_episodes: int = parameter(
        500,
        'episodes of slot b with an outcome after its promotion, in which guards and its success '
        'rate may still roll it back; with canary.watch_hours: until both are reached',
        name='canary.watch_episodes',
        low=0,
        high=1_000_000,
        live=True,
    )
    canary_watch_hours: float = parameter(
        24.0,
        'time after the promotion of slot b in which guards and its success rate may still roll '
        'it back; with canary.watch_episodes: until both are reached',
        name='canary.watch_hours',
        unit='h',
        low=0.0,
        high=10_000.0,
        live=True,
    )
    canary_outcome_timeout_hours: float = parameter(
        24.0,
        'time after its end in which the outcome of an episode is accepted',
        name='canary.outcome_timeout_hours',
        unit='h',
        low=0.001,
        high=720.0,
        live=True,
    )
    canary_max_failed_percent: float = parameter(
        2.0,
        "rolls back when the share of failed requests of slot b exceeds this and twice slot a's "
        '(at most 10 points above it)',
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
        "rolls back when the share of cage trips in slot b exceeds this and twice slot a's (at "
        'most 10 points above it)',
        name='canary.max_trip_percent',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    canary_max_fallback_percent: float = parameter(
        5.0,
        'rolls back when the share of fallback commands in slot b (missing or stale actions) '
        "exceeds this and twice slot a's (at most 10 points above it)",
        name='canary.max_fallback_percent',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    canary_max_divergence: float = parameter(
        0.0,
        'rolls back when the divergence of the policy of slot b in shadow exceeds this many '
        "spreads of slot a's policy; 0 disables",
        name='canary.max_divergence',
        low=0.0,
        high=1e6,
        live=True,
    )
    canary_max_halted_percent: float = parameter(
        5.0,
        'rolls back when in more than this share of the episodes of slot b, and twice the share '
        'of slot a (at most 10 points above it), the robot halted: its safety cage latched, or '
        'the stop service was called; 0 disables',
        name='canary.max_halted_percent',
        unit='%',
        low=0.0,
        high=100.0,
        live=True,
    )
    canary_minimum_halts: int = parameter(
        2,
        'halts of robots in slot b that a step needs before their share is evaluated',
        name='canary.minimum_halts',
        low=1,
        high=1_000_000,
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
    def takeover_slots(self) -> frozenset[str]:
        """The slots of `failover_slots`."""
        return frozenset(
            {'a', 'b'} if self.failover_slots == 'both' else {self.failover_slots} - {'none'}
        )

    @property
    def timeout_ns(self) -> int:
        """The time limit of a reply; a later one counts as a failure."""
        return int(self.reply_timeout_s * 1e9)

    @property
    def leave_within_ns(self) -> int:
        """How long running episodes may stay in a slot that is drained."""
        return int(self.episode_drain_timeout_s * 1e9)

    def share_percent(self, slot_name: str) -> int:
        """Return the configured share of new episodes of a slot; 100 for a single slot."""
        if slot_name == SINGLE_SLOT:
            return 100
        return self.split_percent if slot_name == 'a' else 100 - self.split_percent

    def within(self, namespace: str) -> Self:
        """Return the parameters with full server names. Raises ParameterError."""

        def full(servers: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(self._full_name(namespace, server) for server in servers)

        named = replace(
            self,
            slot_a=full(self.slot_a),
            slot_b=full(self.slot_b),
            slot_prod=full(self.slot_prod),
            shadow_server=self._full_name(namespace, self.shadow_server)
            if self.shadow_server
            else '',
        )
        named.check()
        return named

    def _full_name(self, namespace: str, server: str) -> str:
        name = full_name(namespace, server)
        return f'{OVER_ZENOH}{node_name(name)}' if self.link == 'zenoh' else name

    @property
    def slots(self) -> dict[str, tuple[str, ...]]:
        """The servers of each slot."""
        return {'prod': self.slot_prod} if self.slot_prod else {'a': self.slot_a, 'b': self.slot_b}

    @property
    def servers(self) -> tuple[str, ...]:
        """All replicas of all slots."""
        return tuple(server for servers in self.slots.values() for server in servers)

    @property
    def plan(self) -> CanaryPlan | None:
        """The plan of the canary; None without one. Raises ParameterError."""
        return parse_plan(
            self.canary_plan,
            minimum_episodes=self.canary_minimum_episodes,
            minimum_s=self.canary_minimum_step_s,
            name='canary.plan',
        )

    @property
    def terms(self) -> tuple[float, float, float, int]:
        """The error bounds of the canary: where one changes, its comparison begins anew."""
        bounds = self.canary_margin, self.canary_false_promotion, self.canary_false_rollback
        return *bounds, self.canary_block_episodes

    @property
    def terms_text(self) -> str:
        margin, promotion, rollback, block = self.terms
        return (
            f'margin {margin:g}, false promotion {promotion:g}, false rollback {rollback:g}, '
            f'blocks of {block} episodes'
        )

    @property
    def promotion_level(self) -> float:
        """The log e at which the candidate passes: it is not worse by the margin."""
        return -math.log(self.canary_false_promotion)

    def rollback_level(self, trials: int) -> float:
        """Return the log e at which the candidate is worse; all steps share the error bound."""
        return -math.log(self.canary_false_rollback / trials)

    @property
    def quota_rules(self) -> tuple[QuotaRule, ...]:
        """What robots and groups may use. Raises ParameterError."""
        return parse_quotas(self.quotas)

    @property
    def verdict_within_ns(self) -> int:
        return int(self.canary_outcome_timeout_hours * HOUR_NS)

    def check(self) -> None:
        """Raise ParameterError for values that contradict each other."""
        check_address(self.state_url, self.state_site)
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
                    f'{named[self.shadow_server]}; a shadow requires a separate policy server'
                )
        if self.probe_max_interval_s < self.probe_initial_interval_s:
            raise ParameterError(
                'probe_max_interval_s must be at least probe_initial_interval_s '
                f'({self.probe_initial_interval_s:g}), got {self.probe_max_interval_s:g}'
            )
        parse_quotas(self.quotas)
        if self.plan and self.slot_prod:
            raise ParameterError('canary.plan requires slot_a and slot_b, but slot_prod is set')


def check_server(name: str, server: str) -> None:
    """Raise ParameterError for an invalid node name."""
    if not is_topic(node_name(full_name('/', server))):
        raise ParameterError(
            f'{name} must be a node name such as /a/policy_server or a/policy_server, got '
            f'{server!r}'
        )
