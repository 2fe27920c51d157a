# SPDX-License-Identifier: Apache-2.0
"""`lerobot-serve demo`: promotes a good policy and rolls back a bad one on simulated robots."""

from __future__ import annotations

from importlib import import_module
from math import inf
from pathlib import Path
import signal
from typing import Annotated, Literal, TYPE_CHECKING

from lerobot_serve.demo.fleet_names import ROBOTS_LIMIT
from lerobot_serve.demo.tour import act_order
from lerobot_serve.tools.cli.signature import Argument, verb_of

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


def demo(
    *,
    acts: Annotated[
        str,
        Argument(
            'acts to run, with those that they require: '
            + ', '.join(act_order.TOURS[act_order.SERVING])
            + ' (all of these); or, with a fleet of their own, '
            + ', '.join(act_order.TOURS[act_order.LEARNING]),
            'ACT,...',
            # the second is its name in 0.1
            flags=('--acts', '--phases'),
            names_default=False,
        ),
    ] = ','.join(act_order.TOURS[act_order.SERVING]),
    robots: Annotated[
        int | None,
        Argument(
            f'simulated robots ({ROBOTS["serving"]}; for learning {ROBOTS["learning"]})',
            'N',
            bounds=(1, ROBOTS_LIMIT),
        ),
    ] = None,
    link: Annotated[
        Literal['ros', 'zenoh'],
        Argument(
            'link between robots, router and servers: ros, or zenoh through free TCP ports of '
            'this machine'
        ),
    ] = 'ros',
    seed: Annotated[int, Argument('seed of the target positions (0)', bounds=(0, inf))] = 0,
    plan: Annotated[
        str,
        Argument(
            'steps of the rollouts: SHARE:OUTCOMES,..., the share of new episodes in percent and '
            f'the outcomes that the step needs ({PLANS["serving"]}; for learning '
            f'{PLANS["learning"]})'
        ),
    ] = '',
    no_dashboard: Annotated[bool, Argument('without the page')] = False,
    keep: Annotated[
        bool, Argument('let the fleet run on after the last act, until Ctrl-C')
    ] = False,
) -> int:
    """Return 0 if every act proves its claim. Raises UserError, ParameterError, OSError."""
    from lerobot_serve.demo.run import DemoOptions, run_demo
    from lerobot_serve.ros.process.private_domain import reserve_domain

    chosen, count, steps = checked(acts, robots, plan)
    started = demo_link(link, chosen)
    OUT.mkdir(parents=True, exist_ok=True)
    # SIGTERM acts like Ctrl-C, so that the started processes end, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    is_shown = run_demo(
        DemoOptions(
            folder=OUT,
            acts=tuple(chosen),
            robots=count,
            seed=seed,
            plan=','.join(steps),
            # this machine only: the demo must not move a real robot
            domain=reserve_domain(),
            link=started,
            has_dashboard=not no_dashboard,
            keeps_running=keep,
        )
    )
    return 0 if is_shown else 1


def demo_link(name: str, acts: list[str]) -> DemoLink:
    """
    Return the link of this name between the processes of these acts. Raises ModuleNotFoundError
    without eclipse-zenoh.
    """
    from lerobot_serve.demo import fleet_names
    from lerobot_serve.demo.tour import learning_fleet
    from lerobot_serve.demo.tour.act_order import LEARNING, tour_of
    from lerobot_serve.demo.tour.link import DemoLink, ZENOH, zenoh_link

    if name != ZENOH:
        return DemoLink()
    # every node needs it; its absence is noticed before any of them starts
    import_module('zenoh')
    is_learning = tour_of(acts) == LEARNING
    return zenoh_link(learning_fleet.LISTENING if is_learning else fleet_names.LISTENING)


def checked(names: str, robots: int | None, plan: str) -> tuple[list[str], int, tuple[str, ...]]:
    """Return acts, number of robots and plan. Raises ParameterError."""
    from lerobot_serve.router.canary.plan import parse_plan

    acts = act_order.ordered_acts(name for name in names.split(',') if name)
    tour = act_order.tour_of(acts)
    steps = tuple((plan or PLANS[tour]).split(','))
    parse_plan(steps, minimum_episodes=1, minimum_s=0.0, name='--plan')
    return acts, robots or ROBOTS[tour], steps


add_arguments, main = verb_of(demo)
