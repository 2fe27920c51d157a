# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve demo`: promotes a good policy and rolls back a bad one on simulated robots."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lerobot_serve.demo.tour.link import DemoLink

HELP = 'run simulated robots: promote a good policy, roll back a bad one, learn from corrections'
EXAMPLE = (
    'example: lerobot-serve demo --acts kill  | exit status 0 when every act proves its claim'
)
OUT = Path('out/demo')
# as many as two cores drive
ROBOTS = {'serving': 3, 'learning': 4}
PLANS = {'serving': '25:2,50:4,100', 'learning': '50:10,100'}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from lerobot_serve.demo.tour import act_order
    from lerobot_serve.demo.tour.link import LINKS, ROS

    parser.add_argument(
        '--acts',
        # its name in 0.1
        '--phases',
        default=','.join(act_order.TOURS[act_order.SERVING]),
        metavar='ACT,...',
        help='acts to run, with those that they require: '
        + ', '.join(act_order.TOURS[act_order.SERVING])
        + ' (all of these); or, with a fleet of their own, '
        + ', '.join(act_order.TOURS[act_order.LEARNING]),
    )
    parser.add_argument(
        '--robots',
        type=int,
        metavar='N',
        help=f'simulated robots ({ROBOTS["serving"]}; for learning {ROBOTS["learning"]})',
    )
    parser.add_argument(
        '--link',
        choices=LINKS,
        default=ROS,
        help='link between robots, router and servers: ros, or zenoh through free TCP ports of '
        f'this machine ({ROS})',
    )
    parser.add_argument('--seed', type=int, default=0, help='seed of the target positions (0)')
    parser.add_argument(
        '--plan',
        help='steps of the rollouts: SHARE:OUTCOMES,..., the share of new episodes in percent and '
        f'the outcomes that the step needs ({PLANS["serving"]}; for learning {PLANS["learning"]})',
    )
    parser.add_argument('--no-dashboard', action='store_true', help='without the page')
    parser.add_argument(
        '--keep', action='store_true', help='let the fleet run on after the last act, until Ctrl-C'
    )


def main(options: argparse.Namespace) -> int:
    """Return 0 if every act proves its claim. Raises UserError, ParameterError."""
    from lerobot_serve.demo.run import DemoOptions, run_demo
    from lerobot_serve.ros.process.private_domain import reserve_domain
    from lerobot_serve.tools.cli.output_folder import make_folder

    acts, robots, plan = checked(options)
    link = demo_link(options.link, acts)
    make_folder(OUT)
    # SIGTERM acts like Ctrl-C, so that the started processes end, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_shown = run_demo(
        DemoOptions(
            folder=OUT,
            acts=tuple(acts),
            robots=robots,
            seed=options.seed,
            plan=','.join(plan),
            # this machine only: the demo must not move a real robot
            domain=reserve_domain(),
            link=link,
            has_dashboard=not options.no_dashboard,
            keeps_running=options.keep,
        )
    )
    return 0 if is_shown else 1


def demo_link(name: str, acts: list[str]) -> DemoLink:
    """
    Return the link of this name between the processes of these acts. Raises ModuleNotFoundError
    without eclipse-zenoh.
    """
    from lerobot_serve.demo import process_specs
    from lerobot_serve.demo.tour import learning_fleet
    from lerobot_serve.demo.tour.act_order import LEARNING, tour_of
    from lerobot_serve.demo.tour.link import DemoLink, ZENOH, zenoh_link

    if name != ZENOH:
        return DemoLink()
    # every node needs it; its absence is noticed before any of them starts
    import_module('zenoh')
    is_learning = tour_of(acts) == LEARNING
    return zenoh_link(learning_fleet.LISTENING if is_learning else process_specs.LISTENING)


def checked(options: argparse.Namespace) -> tuple[list[str], int, tuple[str, ...]]:
    """Return acts, number of robots and plan. Raises ParameterError."""
    from lerobot_serve.demo import process_specs
    from lerobot_serve.demo.tour import act_order
    from lerobot_serve.parameters import ParameterError
    from lerobot_serve.router.canary.plan import parse_plan

    acts = act_order.ordered_acts(name for name in options.acts.split(',') if name)
    tour = act_order.tour_of(acts)
    robots = ROBOTS[tour] if options.robots is None else options.robots
    if not 1 <= robots <= process_specs.ROBOTS_LIMIT:
        raise ParameterError(
            f'--robots must be in [1, {process_specs.ROBOTS_LIMIT}], got {robots}'
        )
    if options.seed < 0:
        raise ParameterError(f'--seed must be at least 0, got {options.seed}')
    plan = tuple((options.plan or PLANS[tour]).split(','))
    parse_plan(plan, minimum_episodes=1, minimum_s=0.0, name='--plan')
    return acts, robots, plan
