# SPDX-License-Identifier: Apache-2.0
"""Processes of the demo and their sections of a fleet file. Plain; any thread."""

from __future__ import annotations

from typing import Any

from lerobot_serve.demo.tour.link import DemoLink

ROUTER, LEARNER = '/policy_router', '/learner'
ROBOTS_LIMIT = 20
# version -> its folder in config/policies; `reach` is also the default of a server
VERSIONS = {'v1': 'reach_v1', 'v2': 'reach', 'v3': 'reach_v3'}
CHAMPIONS = ('a1', 'a2')
CANDIDATE, SHADOW = 'b1', 'shadow'
ROUTER_PROCESS = 'router'
SLOTS = {'a1': 'a', 'a2': 'a', 'b1': 'b', 'shadow': 'shadow'}
# those that others connect to
LISTENING = (*SLOTS, ROUTER_PROCESS)
# folders beside the fleet file; the state is that of the router and the robots
POLICIES, TRACES, STATE = 'policies', 'traces', 'state'
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


def robot_names(count: int) -> list[str]:
    return [f'robot_{number + 1}' for number in range(count)]


def server_node_name(name: str) -> str:
    """Return the full name of a server's node."""
    return f'/{name}/policy_server'


def server_section(name: str, version: str, link: DemoLink) -> dict[str, Any]:
    """Return a policy server that serves a version, as `servers` of a fleet file has it."""
    section = {
        'policy': f'{POLICIES}/{version}',
        'slot': SLOTS[name],
        'cpu_threads': 1,
        'status_period_s': 0.2,
        # another version is loaded at run time
        'policy_root': POLICIES,
        **link.listening(name),
    }
    # the shadow controls no robot, so the audit needs no trace of it
    return section if name == SHADOW else section | {'trace_folder': TRACES}


def router_section(link: DemoLink) -> dict[str, Any]:
    """Return the router; it listens for robots and connects to all servers."""
    servers = {name: link.server_name(server_node_name(name)) for name in SLOTS}
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
        **link.connecting(SLOTS),
    }


def robot_section(name: str, seed: int, link: DemoLink) -> dict[str, Any]:
    """Return the controller of a simulated arm, and the arm."""
    return {
        'simulated': True,
        'task': 'reach the red target',
        'codec': 'raw',
        'network_profile': 'wired',
        # with the alarm each robot would stop and wait for an operator before the canary rolls
        # back
        'clamp_alarm_window_s': 0.0,
        'trace_folder': TRACES,
        'trace_images': 'none',
        # a pause outlasts its process, and must not outlast the demo
        'state_folder': f'{STATE}/{name}',
        **link.robot_parameters(ROUTER_PROCESS),
        'simulation': {'seed': seed, 'attempt_timeout_s': ATTEMPT_S},
    }
