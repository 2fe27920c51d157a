# SPDX-License-Identifier: Apache-2.0
"""The options of `lerobot-serve plan`, their bounds and defaults, and their conversion. Pure."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
import math

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime
from lerobot_serve.tools.plan.sites.costs import SiteCosts

EDGE, ROUTER, SERVER = EdgeParameters(), RouterParameters(), ServerParameters()
# a simulation of 2,000,000 requests takes minutes
REQUESTS_LIMIT = 2_000_000
# a shorter run does not show the loss of a server
MIN_PERIODS = 10
# that hold for --tier, too
TIER_OPTIONS = ('--fps', '--chunk-rows')


@dataclass(frozen=True, slots=True)
class NumberOption:
    """One numeric option; a required one has no `default`."""

    name: str
    kind: type
    low: float
    high: float
    default: float | None
    text: str
    is_required: bool = False

    @property
    def field(self) -> str:
        return self.name[2:].replace('-', '_')

    def check(self, value: float | None) -> float | None:
        """Return the value. Raises ParameterError for a value out of bounds."""
        if value is not None and not self.low <= value <= self.high:
            bounds = f'[{self.low:.15g}, {self.high:.15g}]'
            raise ParameterError(f'{self.name} must be in {bounds}, got {value:.15g}')
        return value


OPTIONS = (
    NumberOption('--robots', int, 1, 10_000, None, 'number of robots', is_required=True),
    NumberOption(
        '--inference-ms', float, 0.1, 60_000, None,
        'measured service time of one request, inference and processing [ms]',
        is_required=True,
    ),
    NumberOption(
        '--rate-hz', float, 0.01, 100, None,
        f'requests of each robot [Hz]; default: request_threshold_s {EDGE.request_threshold_s:g}',
    ),
    NumberOption('--batch', int, 1, 1024, 1, 'largest batch of dynamic_batching (1)'),
    NumberOption(
        '--per-more-ms', float, 0, 60_000, None,
        'service time of each further request of a batch [ms]; default: that of the first',
    ),
    NumberOption(
        '--batch-wait-ms', float, 0, 1000, SERVER.max_batch_delay_ms,
        f'longest wait of a batch for further requests [ms] ({SERVER.max_batch_delay_ms:g})',
    ),
    NumberOption(
        '--network-ms', float, 0, 10_000, SERVER.network_round_trip_ms,
        f'network round trip [ms] ({SERVER.network_round_trip_ms:g})',
    ),
    NumberOption('--chunk-rows', int, 1, 10_000, 100, 'actions in a chunk (100)'),
    NumberOption('--fps', float, 0.1, 1000, 30.0, 'actions that a robot executes per second (30)'),
    NumberOption(
        '--max-age-ms', float, 50, 60_000, 1e3 * EDGE.max_action_age_s,
        f'max_action_age_s of the edge controllers [ms] ({1e3 * EDGE.max_action_age_s:g})',
    ),
    NumberOption(
        '--failover-s', float, 0, 60, ROUTER.reply_timeout_s,
        'time from the loss of a server to the next request of its robots [s]; reply_timeout_s '
        f'of a router ({ROUTER.reply_timeout_s:g}); without a router half of request_threshold_s '
        f'({EDGE.request_threshold_s / 2:g})',
    ),
    NumberOption('--max-servers', int, 1, 10_001, None, 'largest number to try (robots + 1)'),
    NumberOption('--seconds', float, 1, 100_000, 60.0, 'virtual time of each simulation [s] (60)'),
    NumberOption('--seed', int, 0, 2**63, 1, 'seed of the random numbers (1)'),
)  # fmt: skip
# each of these, but one site, asks for a plan of sites with routers and a store; the defaults are
# those of docs/plan.md, measured at load
SITES, EPISODE_S = 1, 60.0
ROUTER_MS, ROUTER_MB, ROUTER_MB_PER_ROBOT = 1.4, 134.0, 0.34
STORE_MS, STORE_IDLE_PERCENT = 1.4, 0.4
SITE_OPTIONS = (
    NumberOption(
        '--sites', int, 1, 1000, None,
        f'sites over which the robots are spread evenly, each with routers and servers ({SITES})',
    ),
    NumberOption(
        '--routers', int, 1, 100, None,
        'routers of each site; default: as many as one site needs, and one spare',
    ),
    NumberOption(
        '--router-ms', float, 0.001, 1000, None,
        f'CPU time of a router for a request and its reply [ms] ({ROUTER_MS:g})',
    ),
    NumberOption(
        '--router-mb', float, 0, 100_000, None,
        f'memory of a router without robots [MB] ({ROUTER_MB:g})',
    ),
    NumberOption(
        '--router-mb-per-robot', float, 0, 1000, None,
        f'memory of a router for each robot [MB] ({ROUTER_MB_PER_ROBOT:g})',
    ),
    NumberOption(
        '--store-ms', float, 0.001, 1000, None,
        f'CPU time of the shared store for one placement of an episode [ms] ({STORE_MS:g})',
    ),
    NumberOption(
        '--store-idle-percent', float, 0, 100, None,
        'share of a core that the shared store needs for each router without episodes [percent] '
        f'({STORE_IDLE_PERCENT:g})',
    ),
    NumberOption(
        '--episode-s', float, 1, 100_000, None, f'length of an episode [s] ({EPISODE_S:g})'
    ),
)  # fmt: skip
ALL_OPTIONS = OPTIONS + SITE_OPTIONS


def wrong_combination(options: argparse.Namespace) -> str:
    """Return what is missing for a number of servers, or has no effect on tiers; else empty."""
    if options.tier:
        unused = [
            option.name
            for option in ALL_OPTIONS
            if option.name not in TIER_OPTIONS and getattr(options, option.field) != option.default
        ]
        return f'{" and ".join(unused)} must not be given with --tier' if unused else ''
    missing = [
        option.name
        for option in OPTIONS
        if option.is_required and getattr(options, option.field) is None
    ]
    return f'{" and ".join(missing)} must be given, or --tier' if missing else ''


def fleet_demand(options: argparse.Namespace) -> FleetDemand:
    """Return the demand of the fleet. Raises ParameterError."""
    chunk_s, max_age_s = options.chunk_rows / options.fps, options.max_age_ms / 1e3
    return FleetDemand(
        robots=options.robots,
        rate_hz=options.rate_hz or default_rate_hz(min(chunk_s, max_age_s)),
        network_s=options.network_ms / 1e3,
        chunk_s=chunk_s,
        max_age_s=max_age_s,
        failover_s=options.failover_s,
        request_timeout_s=EDGE.request_timeout_s,
    )


def wants_sites(options: argparse.Namespace) -> bool:
    """Return whether a plan of sites is asked for; one site alone is the plan of a fleet."""
    given = {option.field for option in SITE_OPTIONS} - {'sites'}
    return (options.sites or SITES) > 1 or any(
        getattr(options, field) is not None for field in given
    )


def site_costs(options: argparse.Namespace) -> SiteCosts:
    """Return the costs of routers and store."""

    def value(given: float | None, default: float) -> float:
        return default if given is None else given

    return SiteCosts(
        router_s=value(options.router_ms, ROUTER_MS) / 1e3,
        router_mb=value(options.router_mb, ROUTER_MB),
        router_mb_per_robot=value(options.router_mb_per_robot, ROUTER_MB_PER_ROBOT),
        store_s=value(options.store_ms, STORE_MS) / 1e3,
        store_idle_share=value(options.store_idle_percent, STORE_IDLE_PERCENT) / 1e2,
        episode_s=value(options.episode_s, EPISODE_S),
    )


def default_rate_hz(playable_s: float) -> float:
    """Return the request rate of an edge controller with defaults. Raises ParameterError."""
    if playable_s <= EDGE.request_threshold_s:
        raise ParameterError(
            f'--rate-hz is required: a chunk plays for {playable_s:g} s, and request_threshold_s '
            f'of an edge is {EDGE.request_threshold_s:g}, so that a request follows each reply at '
            'once'
        )
    return 1 / (playable_s - EDGE.request_threshold_s)


def service_time(options: argparse.Namespace) -> ServiceTime:
    """Return the service times of a server. Raises ParameterError."""
    more_ms = options.inference_ms if options.per_more_ms is None else options.per_more_ms
    if more_ms > options.inference_ms:
        raise ParameterError(
            f'--per-more-ms must be in [0, --inference-ms ({options.inference_ms:g})], got '
            f'{more_ms:g}'
        )
    return ServiceTime(
        options.inference_ms / 1e3, more_ms / 1e3, options.batch, options.batch_wait_ms / 1e3
    )


def check_length(options: argparse.Namespace, fleet: FleetDemand) -> None:
    """Raise ParameterError for a simulation that is too short or too long."""
    shortest_s = math.ceil(max(MIN_PERIODS * fleet.period_s, 4 * fleet.failover_s))
    requests_hz = fleet.robots * fleet.rate_hz
    longest_s = math.floor(REQUESTS_LIMIT / requests_hz)
    if longest_s < shortest_s:
        raise ParameterError(
            f'{fleet.robots} robots at {fleet.rate_hz:g} Hz send {requests_hz:g} requests per '
            f'second; the shortest simulation ({shortest_s} s) would exceed {REQUESTS_LIMIT} '
            'requests'
        )
    if not shortest_s <= options.seconds <= longest_s:
        raise ParameterError(
            f'--seconds must be in [{shortest_s}, {longest_s}] for this number of robots and '
            f'rate, got {options.seconds:g}'
        )
