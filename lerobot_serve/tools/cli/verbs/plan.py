# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve plan`: computes what a fleet, or many sites, need. Needs no ROS."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot_serve.tools.plan.demand import FleetDemand, ServiceTime

HELP = 'compute how many policy servers and routers a fleet needs, and from where they can drive'
EXAMPLE = (
    'example: lerobot-serve plan --robots 300 --inference-ms 150 --rate-hz 1  | exit status 0 '
    'when a number of servers meets all goals, 1 when none does or a value is refused, 2 for a '
    'wrong command line'
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from lerobot_serve.tools.plan.options import ALL_OPTIONS
    from lerobot_serve.tools.plan.tiers import parse_tier

    for option in ALL_OPTIONS:
        parser.add_argument(
            option.name,
            type=option.kind,
            default=option.default,
            metavar='N' if option.kind is int else option.name.rpartition('-')[2].upper(),
            help=option.text,
        )
    parser.add_argument(
        '--tier',
        type=parse_tier,
        action='append',
        metavar='NAME:INFERENCE_MS[:NETWORK_MS]',
        help='instead of servers: whether a policy of this latency, on the robot, at the site or '
        'far away, can drive at --fps; once for each place',
    )
    parser.add_argument('--json', action='store_true', help='print a JSON object')


def main(options: argparse.Namespace) -> int:
    """Return 0 when a number of servers meets the goals, otherwise 1. Raises ParameterError."""
    import json

    from lerobot_serve.server.sessions.admission import MAX_UTILIZATION
    from lerobot_serve.tools.cli.progress import show_spinner
    from lerobot_serve.tools.plan.formula import apply_formula
    from lerobot_serve.tools.plan.options import (
        ALL_OPTIONS,
        check_length,
        fleet_demand,
        service_time,
        wants_sites,
        wrong_combination,
    )
    from lerobot_serve.tools.plan.report import as_json, as_text
    from lerobot_serve.tools.plan.search import find_server_count, SimulationSettings

    for option in ALL_OPTIONS:
        option.check(getattr(options, option.field))
    if text := wrong_combination(options):
        # as argparse has it
        print(f'lerobot-serve plan: error: {text}', file=sys.stderr)
        raise SystemExit(2)
    if options.tier:
        return _print_tiers(options)
    fleet, service = fleet_demand(options), service_time(options)
    if wants_sites(options):
        return _print_sites(options, fleet, service)
    check_length(options, fleet)
    found = apply_formula(fleet, service, MAX_UTILIZATION)
    limit = options.max_servers or options.robots + 1
    also = (found.without_spare, found.servers)
    with show_spinner('simulating'):
        planned = find_server_count(
            fleet, service, SimulationSettings(options.seconds, options.seed), limit, also
        )
    if options.json:
        print(json.dumps(as_json(fleet, service, found, planned), indent=2))
    else:
        print(as_text(fleet, service, found, planned))
    return 1 if planned.servers is None else 0


def _print_sites(options: argparse.Namespace, fleet: FleetDemand, service: ServiceTime) -> int:
    """Return 0 when each site meets the goals, otherwise 1. Raises ParameterError."""
    import json

    from lerobot_serve.tools.cli.progress import show_spinner
    from lerobot_serve.tools.plan.options import check_length, site_costs, SITES
    from lerobot_serve.tools.plan.search import SimulationSettings
    from lerobot_serve.tools.plan.sites import report
    from lerobot_serve.tools.plan.sites.plan import plan_sites
    from lerobot_serve.tools.plan.sites.search import SiteModel

    model = SiteModel(
        fleet, service, site_costs(options), SimulationSettings(options.seconds, options.seed)
    )
    sites = options.sites or SITES
    check_length(options, model.largest(sites).fleet)
    with show_spinner('simulating'):
        found = plan_sites(model, sites, options.routers, options.max_servers)
    if options.json:
        print(json.dumps(report.as_json(found), indent=2))
    else:
        print(report.as_text(found))
    return 0 if found.is_enough else 1


def _print_tiers(options: argparse.Namespace) -> int:
    """Return 0 when a tier can drive, otherwise 1. Raises ParameterError."""
    import json

    from lerobot_serve.tools.plan import tiers

    found = tiers.judge(options.tier, options.fps, options.chunk_rows)
    if options.json:
        print(json.dumps(tiers.as_json(found), indent=2))
    else:
        print(tiers.as_text(found, options.fps, options.chunk_rows))
    return 0 if any(each.can_answer_each_step or each.can_send_chunks for each in found) else 1
