# SPDX-License-Identifier: Apache-2.0
"""The command line of `lerobot-serve plan`: its options with bounds, and what they mean. Pure."""

from __future__ import annotations

from collections.abc import Sequence
import math
from types import SimpleNamespace
from typing import Annotated, Any

from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.parameters import ParameterError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.server.sessions.session_validation import MAX_UTILIZATION
from lerobot_serve.tools.argument import Argument, Parameter
from lerobot_serve.tools.output.report import Report
from lerobot_serve.tools.plan.demand import apply_formula, FleetDemand, ServiceTime
from lerobot_serve.tools.plan.report import plan_report
from lerobot_serve.tools.plan.search import find_server_count, SimulationSettings
from lerobot_serve.tools.plan.sites_costs import SiteCosts
from lerobot_serve.tools.plan.sites_plan import plan_sites
from lerobot_serve.tools.plan.sites_report import sites_report
from lerobot_serve.tools.plan.sites_search import SiteModel
from lerobot_serve.tools.plan.tiers import judge, parse_tier, Tier, tiers_report

EDGE, ROUTER, SERVER = EdgeParameters(), RouterParameters(), ServerParameters()
# a simulation of 2,000,000 requests takes minutes
REQUESTS_LIMIT = 2_000_000
# a shorter run does not show the loss of a server
MIN_PERIODS = 10
# that hold for --tier, too, and those that a number of servers needs
TIER_OPTIONS, NEEDED = ('fps', 'chunk_rows'), ('robots', 'inference_ms')


def _option(
    name: str, kind: type, low: float, high: float, default: float | None, text: str
) -> Parameter:
    metavar = 'N' if kind is int else name.rpartition('_')[2].upper()
    about = Argument(text, metavar, names_default=False, bounds=(low, high))
    return Parameter(name, Annotated[kind, about], default)


OPTIONS = [
    _option('robots', int, 1, 10_000, None, 'number of robots'),
    _option(
        'inference_ms', float, 0.1, 60_000, None,
        'measured service time of one request, inference and processing [ms]',
    ),
    _option(
        'rate_hz', float, 0.01, 100, None,
        f'requests of each robot [Hz]; default: request_threshold_s {EDGE.request_threshold_s:g}',
    ),
    _option('batch', int, 1, 1024, 1, 'largest batch of dynamic_batching (1)'),
    _option(
        'per_more_ms', float, 0, 60_000, None,
        'service time of each further request of a batch [ms]; default: that of the first',
    ),
    _option(
        'batch_wait_ms', float, 0, 1000, SERVER.max_batch_delay_ms,
        f'longest wait of a batch for further requests [ms] ({SERVER.max_batch_delay_ms:g})',
    ),
    _option(
        'network_ms', float, 0, 10_000, SERVER.network_round_trip_ms,
        f'network round trip [ms] ({SERVER.network_round_trip_ms:g})',
    ),
    _option('chunk_rows', int, 1, 10_000, 100, 'actions in a chunk (100)'),
    _option('fps', float, 0.1, 1000, 30.0, 'actions that a robot executes per second (30)'),
    _option(
        'max_age_ms', float, 50, 60_000, 1e3 * EDGE.max_action_age_s,
        f'max_action_age_s of the edge controllers [ms] ({1e3 * EDGE.max_action_age_s:g})',
    ),
    _option(
        'failover_s', float, 0, 60, ROUTER.reply_timeout_s,
        'time from the loss of a server to the next request of its robots [s]; reply_timeout_s '
        f'of a router ({ROUTER.reply_timeout_s:g}); without a router half of request_threshold_s '
        f'({EDGE.request_threshold_s / 2:g})',
    ),
    _option('max_servers', int, 1, 10_001, None, 'largest number to try (robots + 1)'),
    _option('seconds', float, 1, 100_000, 60.0, 'virtual time of each simulation [s] (60)'),
    _option('seed', int, 0, 2**63, 1, 'seed of the random numbers (1)'),
]  # fmt: skip
# each of these, but one site, asks for a plan of sites with routers and a store; the defaults are
# those of docs/plan.md, measured at load
EPISODE_S = 60.0
ROUTER_MS, ROUTER_MB, ROUTER_MB_PER_ROBOT = 1.4, 134.0, 0.34
STORE_MS, STORE_IDLE_PERCENT = 1.4, 0.4
SITE_OPTIONS = [
    _option(
        'sites', int, 1, 1000, 1,
        'sites over which the robots are spread evenly, each with routers and servers (1)',
    ),
    _option(
        'routers', int, 1, 100, None,
        'routers of each site; default: as many as one site needs, and one spare',
    ),
    _option(
        'router_ms', float, 0.001, 1000, None,
        f'CPU time of a router for a request and its reply [ms] ({ROUTER_MS:g})',
    ),
    _option(
        'router_mb', float, 0, 100_000, None,
        f'memory of a router without robots [MB] ({ROUTER_MB:g})',
    ),
    _option(
        'router_mb_per_robot', float, 0, 1000, None,
        f'memory of a router for each robot [MB] ({ROUTER_MB_PER_ROBOT:g})',
    ),
    _option(
        'store_ms', float, 0.001, 1000, None,
        f'CPU time of the shared store for one placement of an episode [ms] ({STORE_MS:g})',
    ),
    _option(
        'store_idle_percent', float, 0, 100, None,
        'share of a core that the shared store needs for each router without episodes [percent] '
        f'({STORE_IDLE_PERCENT:g})',
    ),
    _option(
        'episode_s', float, 1, 100_000, None, f'length of an episode [s] ({EPISODE_S:g})'
    ),
]  # fmt: skip
ALL_OPTIONS = OPTIONS + SITE_OPTIONS


def wrong_combination(options: Any, tiers: Sequence[Tier]) -> str:
    """Return what is missing for a number of servers, or has no effect on tiers; else empty."""
    if tiers:
        unused = [
            option.flags[0]
            for option in ALL_OPTIONS
            if option.name not in TIER_OPTIONS and getattr(options, option.name) != option.default
        ]
        return f'{" and ".join(unused)} must not be given with --tier' if unused else ''
    missing = [
        option.flags[0]
        for option in ALL_OPTIONS
        if option.name in NEEDED and getattr(options, option.name) is None
    ]
    return f'{" and ".join(missing)} must be given, or --tier' if missing else ''


def fleet_demand(options: Any) -> FleetDemand:
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


def wants_sites(options: Any) -> bool:
    """Return whether a plan of sites is asked for; one site alone is the plan of a fleet."""
    return any(getattr(options, option.name) != option.default for option in SITE_OPTIONS)


def site_costs(options: Any) -> SiteCosts:
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


def service_time(options: Any) -> ServiceTime:
    """Return the service times of a server. Raises ParameterError."""
    more_ms = options.inference_ms if options.per_more_ms is None else options.per_more_ms
    return ServiceTime(
        options.inference_ms / 1e3, more_ms / 1e3, options.batch, options.batch_wait_ms / 1e3
    )


def check_length(options: Any, fleet: FleetDemand) -> None:
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


def plan(
    *,
    options: Annotated[SimpleNamespace, ALL_OPTIONS],
    tier: Annotated[
        Sequence[Tier],
        Argument(
            'instead of servers: whether a policy of this latency, on the robot, at the site or '
            'far away, can drive at --fps; once for each place',
            'NAME:INFERENCE_MS[:NETWORK_MS]',
            parse_tier,
        ),
    ] = (),
) -> Report:
    """Return the plan of servers, sites or tiers. Raises ParameterError, WrongCommandLine."""
    if text := wrong_combination(options, tier):
        raise WrongCommandLine(text)
    if tier:
        judged = judge(tier, options.fps, options.chunk_rows)
        return tiers_report(judged, options.fps, options.chunk_rows)
    fleet, service = fleet_demand(options), service_time(options)
    settings = SimulationSettings(options.seconds, options.seed)
    if wants_sites(options):
        model = SiteModel(fleet, service, site_costs(options), settings)
        check_length(options, model.largest(options.sites).fleet)
        found = plan_sites(model, options.sites, options.routers, options.max_servers)
        return sites_report(found)
    check_length(options, fleet)
    formula = apply_formula(fleet, service, MAX_UTILIZATION)
    limit = options.max_servers or options.robots + 1
    also = (formula.without_spare, formula.servers)
    planned = find_server_count(fleet, service, settings, limit, also)
    return plan_report(fleet, service, formula, planned)
