# SPDX-License-Identifier: Apache-2.0
"""Processes and phases of the demo. Plain; any thread."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROUTER = '/policy_router'
ROBOTS_LIMIT = 20
# version -> its folder in config/policies; `reach` is also the default of a server
VERSIONS = {'v1': 'reach_v1', 'v2': 'reach', 'v3': 'reach_v3'}
CHAMPIONS = ('a1', 'a2')
CANDIDATE, SHADOW = 'b1', 'shadow'
SLOTS = {'a1': 'a', 'a2': 'a', 'b1': 'b', 'shadow': 'prod'}
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
    'canary.minimum_commands': 150,
    # a single slow moment of a laptop does not make a policy slow
    'canary.max_latency_ratio': 0.0,
}
# phase -> its claim, in order
PHASE_CLAIMS = {
    'serve': 'robots without weights execute chunks',
    'shadow': 'v2 runs in shadow and controls no robot',
    'kill': 'a server is killed and no robot stops',
    'canary': 'v2 is promoted step by step',
    'broken': 'v3 is rolled back automatically',
}
PHASE_REQUIREMENTS = {'canary': {'shadow'}, 'broken': {'shadow', 'canary'}}


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process."""

    name: str
    executable: str
    namespace: str = ''
    parameters: dict[str, Any] = field(default_factory=dict)


def ordered_phases(names: Iterable[str]) -> list[str]:
    """Return the named phases with those that they require, in order."""
    wanted = {'serve', *names}
    wanted = wanted.union(*(PHASE_REQUIREMENTS.get(name, ()) for name in wanted))
    return [name for name in PHASE_CLAIMS if name in wanted]


def robot_names(count: int) -> list[str]:
    return [f'robot_{number + 1}' for number in range(count)]


def server_node_name(name: str) -> str:
    """Return the full name of a server's node."""
    return f'/{name}/policy_server'


def server_spec(name: str, version: str, folder: Path, traces: Path) -> ProcessSpec:
    """Return a policy server of a slot; `folder` holds the policies."""
    parameters = {
        'policy_kind': 'builtin',
        'slot': SLOTS[name],
        'cpu_threads': 1,
        'status_period_s': 0.2,
        # another version is loaded at run time
        'policy_root': str(folder),
        **policy_parameters(version, folder),
    }
    # the shadow controls no robot, so the audit needs no trace of it
    if name != SHADOW:
        parameters['trace_folder'] = traces
    return ProcessSpec(name, 'policy_server', f'/{name}', parameters)


def policy_parameters(version: str, folder: Path) -> dict[str, Any]:
    """Return the parameters of a server that name a version."""
    return {'policy_path': str(folder / VERSIONS[version]), 'policy_name': version}


def router_spec(state: Path, traces: Path) -> ProcessSpec:
    parameters = {
        'slot_a': ros_list(map(server_node_name, CHAMPIONS)),
        'slot_b': ros_list([server_node_name(CANDIDATE)]),
        'split_percent': 100,
        'shadow_server': server_node_name(SHADOW),
        'shadow_minimum_episodes': SHADOW_EPISODES,
        'state_folder': state,
        'trace_folder': traces,
        **CANARY,
    }
    return ProcessSpec('router', 'policy_router', parameters=parameters)


def robot_specs(name: str, seed: int, traces: Path) -> list[ProcessSpec]:
    """Return the simulated arm and its controller."""
    edge = {
        'servers': ros_list([ROUTER]),
        'task': 'reach the red target',
        'codec': 'raw',
        'network_profile': 'wired',
        # with the alarm each robot would stop and wait for an operator before the canary rolls
        # back
        'clamp_alarm_window_s': 0.0,
        'trace_folder': traces,
        'trace_images': 'none',
    }
    arm = {'seed': seed, 'attempt_timeout_s': ATTEMPT_S, 'outcome_topic': f'{ROUTER}/outcome'}
    return [
        ProcessSpec(f'{name}_edge', 'edge_controller', f'/{name}', edge),
        ProcessSpec(f'{name}_arm', 'sim_robot', f'/{name}', arm),
    ]


def ros_list(names: Iterable[str]) -> str:
    """Return names as a list for the command line of a node."""
    return '[' + ', '.join(f"'{name}'" for name in names) + ']'
