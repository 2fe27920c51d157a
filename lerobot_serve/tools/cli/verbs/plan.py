# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve plan`: computes what a fleet, or many sites, need. Needs no ROS."""

from __future__ import annotations

import argparse

from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.tools.cli.signature import print_report
from lerobot_serve.tools.output.report import Report

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
    return print_report(plan(options), options)


def plan(options: argparse.Namespace) -> Report:
    """Return the plan of servers, sites or tiers. Raises ParameterError, WrongCommandLine."""
    from lerobot_serve.server.sessions.admission import MAX_UTILIZATION
    from lerobot_serve.tools.cli.progress import show_spinner
    from lerobot_serve.tools.plan import options as plan_options
    from lerobot_serve.tools.plan import tiers
    from lerobot_serve.tools.plan.demand import apply_formula
    from lerobot_serve.tools.plan.report import plan_report
    from lerobot_serve.tools.plan.search import find_server_count, SimulationSettings
    from lerobot_serve.tools.plan.sites.plan import plan_sites
    from lerobot_serve.tools.plan.sites.report import sites_report
    from lerobot_serve.tools.plan.sites.search import SiteModel

    for option in plan_options.ALL_OPTIONS:
        option.check(getattr(options, option.field))
    if text := plan_options.wrong_combination(options):
        raise WrongCommandLine(text)
    if options.tier:
        found = tiers.judge(options.tier, options.fps, options.chunk_rows)
        return tiers.tiers_report(found, options.fps, options.chunk_rows)
    fleet, service = plan_options.fleet_demand(options), plan_options.service_time(options)
    settings = SimulationSettings(options.seconds, options.seed)
    if plan_options.wants_sites(options):
        model = SiteModel(fleet, service, plan_options.site_costs(options), settings)
        sites = options.sites or plan_options.SITES
        plan_options.check_length(options, model.largest(sites).fleet)
        with show_spinner('simulating'):
            return sites_report(plan_sites(model, sites, options.routers, options.max_servers))
    plan_options.check_length(options, fleet)
    formula = apply_formula(fleet, service, MAX_UTILIZATION)
    limit = options.max_servers or options.robots + 1
    also = (formula.without_spare, formula.servers)
    with show_spinner('simulating'):
        planned = find_server_count(fleet, service, settings, limit, also)
    return plan_report(fleet, service, formula, planned)
