# SPDX-License-Identifier: Apache-2.0
"""
Write the fleet file of the learning acts: one policy in both slots, robots with a person at a
leader arm, a recorder, a learner and the loop.

One thread; writes below the folder of the demo only.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lerobot_serve.demo.fleet_names import ROUTER_PROCESS, server_node_name, STATE
from lerobot_serve.demo.tour.fleet_files import (
    as_yaml,
    POLICIES,
    robot_section,
    server_section,
    TRACES,
    write_policy,
)
from lerobot_serve.demo.tour.link import DemoLink

LEARNING_FILE = 'loop.yaml'
VERSIONS, GATES, BAGS, LEARNER, LOOP = 'versions', 'gates', 'bags', 'learner', 'loop'
FOLDERS = (VERSIONS, GATES, BAGS, LEARNER, LOOP)
SLOT_SERVERS = ('a', 'b')
# those that others connect to
LISTENING = (*SLOT_SERVERS, ROUTER_PROCESS)
PARENT, REGRESSING = 'reach', 'aside'
PIXELS, ATTEMPT_S = 64, 3.5
# the parent aims 17 mm beside its targets
REACH_M, NARROW_REACH_M = 0.014, 0.01
# corrected ones of the first round, led ones of a later, corrected ones of the poisoned one
FIRST_EPISODES, LED_EPISODES, POISONED_EPISODES = 40, 5, 10
# between two lessons: no round begins by itself
NO_ROUND_EPISODES = 1000
# of a watch: what the simulation reaches in half a minute
WATCH_EPISODES, WATCH_HOURS = 25, 0.001
SIMULATION = {
    'attempt_timeout_s': ATTEMPT_S,
    'image_height': PIXELS,
    'image_width': PIXELS,
    'reach_m': REACH_M,
    # with leader_corrects a person takes over where the hand stops beside the target
    'leader': True,
}
GATE_RECORDINGS = 40
MARGIN = 0.2
LEARNING_HEAD = """\
# The fleet of the learning acts of `lerobot-serve demo`: one policy in both slots, a router,
# robots that a person corrects, a recorder, a learner and the loop (docs/learning_loop.md).
"""


def write_learning_files(
    folder: Path, shipped: Path, robots: Iterable[str], seed: int, plan: str, link: DemoLink
) -> None:
    """Write the policy, of those that are shipped, and the fleet file."""
    write_policy(shipped / 'reach_v1', folder / POLICIES / PARENT)
    fleet = learning_fleet(robots, seed, plan, link)
    (folder / LEARNING_FILE).write_text(LEARNING_HEAD + as_yaml(fleet))


def learning_fleet(robots: Iterable[str], seed: int, plan: str, link: DemoLink) -> dict[str, Any]:
    """Return the content of the fleet file; paths begin at its folder."""
    return {
        'servers': {
            name: server_section(name, name, PARENT, link, VERSIONS) for name in SLOT_SERVERS
        },
        'router': _router(link),
        'robots': {
            name: robot_section(name, link, {'seed': seed + number, **SIMULATION})
            for number, name in enumerate(robots)
        },
        'record': {'folder': BAGS, 'strategy': 'episodic'},
        'learner': {
            'store': VERSIONS,
            'folder': LEARNER,
            'trainer': 'builtin',
            # what the policy did alone is not a correction
            'episode_filters': ['success', 'intervention'],
            'episodes_per_round': FIRST_EPISODES,
        },
        LOOP: {
            'folder': LOOP,
            'plan': plan,
            'gate_recordings': GATE_RECORDINGS,
            'period_s': 1.0,
        },
    }


def _router(link: DemoLink) -> dict[str, Any]:
    servers = {name: [link.server_name(server_node_name(name))] for name in SLOT_SERVERS}
    return {
        'slot_a': servers['a'],
        'slot_b': servers['b'],
        'split_percent': 100,
        'gate_folder': GATES,
        'state_folder': STATE,
        'trace_folder': TRACES,
        # a small fleet and a short run: a wider margin than the default
        'canary.margin': MARGIN,
        'canary.minimum_step_s': 0.0,
        # attempts of a simulated arm do not depend on each other
        'canary.block_episodes': 1,
        'canary.watch_episodes': WATCH_EPISODES,
        'canary.watch_hours': WATCH_HOURS,
        # a single slow moment of a laptop does not make a policy slow
        'canary.max_latency_ratio': 0.0,
        **link.listening(ROUTER_PROCESS),
        **link.connecting(SLOT_SERVERS),
    }
