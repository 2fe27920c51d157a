# SPDX-License-Identifier: Apache-2.0
"""
Write the files that `lerobot-serve up` starts in the demo, and the policies that they name.

One thread; writes below the folder of the demo only.
"""

from __future__ import annotations

from collections.abc import Iterable
import json
from pathlib import Path
import shutil
from typing import Any

import yaml

from lerobot_serve.demo.fleet_names import (
    CANDIDATE,
    CHAMPIONS,
    ROUTER_PROCESS,
    server_node_name,
    SERVERS,
    SHADOW,
    STATE,
    VERSIONS,
)
from lerobot_serve.demo.tour.link import DemoLink

FLEET_FILE, CANDIDATE_FILE = 'fleet.yaml', 'v2.yaml'
POLICIES, TRACES = 'policies', 'traces'
SETTINGS_FILE, WEIGHTS_FILE = 'policy.json', 'model.safetensors'
# time limit of an attempt of the simulated arm
ATTEMPT_S = 3.0
SHADOW_EPISODES = 5
# Small fleet, short run: a wider margin, and guards that decide on fewer samples than the
# defaults, which suit fleets
CANARY = {
    'canary.margin': 0.4,
    'canary.minimum_step_s': 0.0,
    # attempts of a simulated arm do not depend on each other
    'canary.block_episodes': 1,
    'canary.minimum_replies': 20,
    'canary.minimum_commands': 100,
    # a single slow moment of a laptop does not make a policy slow
    'canary.max_latency_ratio': 0.0,
    # the guard on commands changed by the cage decides about v3, after it has driven some seconds;
    # with the defaults a robot that meets NaN a few times in a row decides before it moves
    'canary.max_failed_percent': 0.0,
    'slot_unhealthy_threshold': 50,
}

FLEET_HEAD = """\
# The fleet of `lerobot-serve demo`: two servers of v1 in slot a, a router, simulated robots.
# The servers of v2 are in v2.yaml; the router knows their names.
"""
CANDIDATE_HEAD = """\
# The candidate of `lerobot-serve demo`: v2 in slot b, and in shadow, where it gets copies of the
# requests and controls no robot.
"""


def write_policies(shipped: Path, folder: Path) -> None:
    """Copy the three shipped policies to POLICIES/v1, v2 and v3, each with that name."""
    for version, name in VERSIONS.items():
        write_policy(shipped / name, folder / POLICIES / version)


def write_policy(shipped: Path, target: Path) -> None:
    """Copy one policy, with the name of its new folder."""
    target.mkdir(parents=True, exist_ok=True)
    settings = json.loads((shipped / SETTINGS_FILE).read_text())
    (target / SETTINGS_FILE).write_text(
        json.dumps({**settings, 'id': target.name}, indent=2) + '\n'
    )
    shutil.copyfile(shipped / WEIGHTS_FILE, target / WEIGHTS_FILE)


def write_fleet_files(folder: Path, robots: Iterable[str], seed: int, link: DemoLink) -> None:
    """Write the two fleet files."""
    for name, text in fleet_texts(robots, seed, link).items():
        (folder / name).write_text(text)


def fleet_texts(robots: Iterable[str], seed: int, link: DemoLink) -> dict[str, str]:
    """Return the text of each fleet file by its name; paths begin at its folder."""
    fleet = {
        'servers': {name: server_section(name, 'a', 'v1', link) for name in CHAMPIONS},
        'router': router_section(link),
        'robots': {
            name: robot_section(name, link, {'seed': each, 'attempt_timeout_s': ATTEMPT_S})
            # with the alarm each robot would stop and wait for an operator before the canary
            # rolls back
            | {'clamp_alarm_window_s': 0.0}
            for each, name in enumerate(robots, seed)
        },
    }
    shadow = server_section(SHADOW, 'shadow', 'v2', link)
    # it controls no robot, so the audit needs no trace of it
    del shadow['trace_folder']
    candidates = {CANDIDATE: server_section(CANDIDATE, 'b', 'v2', link), SHADOW: shadow}
    return {
        FLEET_FILE: FLEET_HEAD + as_yaml(fleet),
        CANDIDATE_FILE: CANDIDATE_HEAD + as_yaml({'servers': candidates}),
    }


def server_section(
    name: str, slot: str, policy: str, link: DemoLink, root: str = POLICIES
) -> dict[str, Any]:
    """Return a policy server of a slot; versions in the folder `root` are loaded at run time."""
    return {
        'policy': f'{POLICIES}/{policy}',
        'slot': slot,
        'policy_root': root,
        'cpu_threads': 1,
        'status_period_s': 0.2,
        'trace_folder': TRACES,
        **link.listening(name),
    }


def router_section(link: DemoLink) -> dict[str, Any]:
    """Return the router; it listens for robots and connects to all servers."""
    servers = {name: link.server_name(server_node_name(name)) for name in SERVERS}
    return {
        'slot_a': [servers[name] for name in CHAMPIONS],
        'slot_b': [servers[CANDIDATE]],
        'split_percent': 100,
        'shadow_server': servers[SHADOW],
        'shadow_minimum_episodes': SHADOW_EPISODES,
        'state_folder': STATE,
        'trace_folder': TRACES,
        **CANARY,
        **link.listening(ROUTER_PROCESS),
        **link.connecting(SERVERS),
    }


def robot_section(name: str, link: DemoLink, simulation: dict[str, Any]) -> dict[str, Any]:
    """Return a simulated robot; `up` gives the servers and the topic of the outcomes."""
    return {
        'simulated': True,
        'task': 'reach the red target',
        'codec': 'raw',
        'network_profile': 'wired',
        'trace_folder': TRACES,
        'trace_images': 'none',
        # a pause or a takeover outlasts its process, and must not outlast the demo
        'state_folder': f'{STATE}/{name}',
        **link.robot_parameters(ROUTER_PROCESS),
        'simulation': simulation,
    }


def as_yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, width=98)
    return text
