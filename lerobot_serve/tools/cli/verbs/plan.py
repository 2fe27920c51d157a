# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve plan`: computes what a fleet, or many sites, need. Needs no ROS."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from lerobot_serve.tools.cli.signature import add_parameters, print_report, values_of

HELP = 'compute how many policy servers and routers a fleet needs, and from where they can drive'
EXAMPLE = (
    'example: lerobot-serve plan --robots 300 --inference-ms 150 --rate-hz 1  | exit status 0 '
    'when a number of servers meets all goals, 1 when none does or a value is refused, 2 for a '
    'wrong command line'
)


def add_arguments(parser: ArgumentParser) -> None:
    from lerobot_serve.tools.plan.command import plan

    add_parameters(parser, plan)


def main(options: Namespace) -> int:
    """Return 0 when a number of servers meets the goals, otherwise 1. Raises UserError."""
    from lerobot_serve.tools.cli.progress import show_spinner
    from lerobot_serve.tools.plan.command import plan

    with show_spinner('simulating'):
        report = plan(**values_of(plan, options))
    return print_report(report, options)
