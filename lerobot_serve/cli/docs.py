"""`lerobot-serve docs`: the parameter reference, made from the code."""

from __future__ import annotations

import argparse
from pathlib import Path

from lerobot_serve.edge import profiles
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.parameters import table
from lerobot_serve.ros.runtime import UserError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters

EXAMPLE = 'example: lerobot-serve docs --write'
NODES = {
    'policy_server': ServerParameters,
    'edge_controller': EdgeParameters,
    'policy_router': RouterParameters,
    'sim_robot': SimParameters,
}
INTRODUCTION = """# Parameters

Made from the code by `make docs`; do not edit. A parameter that is not live is read at start and
read-only afterwards. A wrong value, or a name that is not here, ends the start with one line; a
wrong change is refused and changes nothing.

Topics also take the standard `qos_overrides.*` parameters.
"""
PROFILES = """## Profiles of edge_controller

What `profile` sets of the parameters that are not given.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--write', action='store_true', help='write docs/parameters.md below the current folder'
    )


def reference() -> str:
    """Return the whole page."""
    parts = [f'## {name}\n\n{table(parameters)}\n' for name, parameters in NODES.items()]
    return '\n'.join([INTRODUCTION, *parts, f'{PROFILES}\n{profiles.table()}\n'])


def main(options: argparse.Namespace) -> int:
    if not options.write:
        print(reference())
        return 0
    file = Path('docs/parameters.md')
    if not file.parent.is_dir():
        raise UserError('there is no folder docs here; run this at the top of the repository')
    file.write_text(reference())
    print(f'wrote {file}')
    return 0
