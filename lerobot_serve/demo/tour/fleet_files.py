# SPDX-License-Identifier: Apache-2.0
"""
Write the files that `lerobot-serve up` starts in the demo, and the policies that they name.

One thread; writes below the folder of the demo only.
"""

from __future__ import annotations

from collections.abc import Iterable
import json
import os
from pathlib import Path
import shutil
from typing import Any

import yaml

from lerobot_serve.demo import process_specs
from lerobot_serve.demo.process_specs import ProcessSpec, STATE, VERSIONS
from lerobot_serve.demo.tour.link import DemoLink

FLEET_FILE, CANDIDATE_FILE = 'fleet.yaml', 'v2.yaml'
POLICIES, TRACES = 'policies', 'traces'
SETTINGS_FILE, WEIGHTS_FILE = 'policy.json', 'model.safetensors'
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
    for name, text in fleet_texts(folder, robots, seed, link).items():
        (folder / name).write_text(text)


def fleet_texts(folder: Path, robots: Iterable[str], seed: int, link: DemoLink) -> dict[str, str]:
    """Return the text of each fleet file by its name."""
    traces = folder / TRACES
    champions = servers_section(folder, process_specs.CHAMPIONS, 'v1', link)
    candidates = servers_section(
        folder, (process_specs.CANDIDATE, process_specs.SHADOW), 'v2', link
    )
    router = process_specs.router_spec(folder / STATE, traces, link)
    fleet = {
        'servers': champions,
        'router': portable(router.parameters, folder),
        'robots': {
            name: robot_section(process_specs.robot_specs(name, seed + n, traces, link), folder)
            for n, name in enumerate(robots)
        },
    }
    return {
        FLEET_FILE: FLEET_HEAD + as_yaml(fleet),
        CANDIDATE_FILE: CANDIDATE_HEAD + as_yaml({'servers': candidates}),
    }


def servers_section(
    folder: Path, names: Iterable[str], version: str, link: DemoLink
) -> dict[str, Any]:
    """Return the servers of a version."""
    found = {}
    for name in names:
        spec = process_specs.server_spec(
            name, folder / POLICIES / version, version, folder / TRACES, link
        )
        given = {'policy': spec.parameters['policy_path'], **spec.parameters}
        # `policy` has them; a policy that is loaded later brings its own name
        for implied in ('policy_kind', 'policy_path', 'policy_name'):
            del given[implied]
        if name == process_specs.SHADOW:
            given['slot'] = 'shadow'
        found[name] = portable(given, folder)
    return found


def robot_section(specs: list[ProcessSpec], folder: Path) -> dict[str, Any]:
    """Return one simulated robot."""
    edge, arm = specs
    # `up` gives the servers and the topic of the outcomes
    parameters = {name: v for name, v in edge.parameters.items() if name != 'servers'}
    simulation = {name: v for name, v in arm.parameters.items() if name != 'outcome_topic'}
    return {'simulated': True, **portable(parameters, folder), 'simulation': simulation}


def portable(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return values of a file in this folder, paths relative to it."""
    return {
        name: os.path.relpath(value, folder) if isinstance(value, Path) else value
        for name, value in values.items()
    }


def as_yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, width=98)
    return text
