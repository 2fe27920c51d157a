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

from lerobot_serve.demo.process_specs import (
    CANDIDATE,
    CHAMPIONS,
    POLICIES,
    robot_section,
    router_section,
    server_section,
    SHADOW,
    VERSIONS,
)
from lerobot_serve.demo.tour.link import DemoLink

FLEET_FILE, CANDIDATE_FILE = 'fleet.yaml', 'v2.yaml'
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
    for name, text in fleet_texts(robots, seed, link).items():
        (folder / name).write_text(text)


def fleet_texts(robots: Iterable[str], seed: int, link: DemoLink) -> dict[str, str]:
    """Return the text of each fleet file by its name."""
    champions = {name: server_section(name, 'v1', link) for name in CHAMPIONS}
    candidates = {name: server_section(name, 'v2', link) for name in (CANDIDATE, SHADOW)}
    fleet = {
        'servers': champions,
        'router': router_section(link),
        'robots': {name: robot_section(name, seed + n, link) for n, name in enumerate(robots)},
    }
    return {
        FLEET_FILE: FLEET_HEAD + as_yaml(fleet),
        CANDIDATE_FILE: CANDIDATE_HEAD + as_yaml({'servers': candidates}),
    }


def as_yaml(content: dict[str, Any]) -> str:
    text: str = yaml.safe_dump(content, sort_keys=False, width=98)
    return text
