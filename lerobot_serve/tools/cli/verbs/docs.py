# SPDX-License-Identifier: Apache-2.0
"""
`lerobot-serve docs`: generates the references of parameters and of messages, the state diagrams of
the pages, and the comments of the parameter files.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ament_index_python.packages import get_package_share_directory

from lerobot_serve.edge import network_profiles
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.parameters import markdown_table
from lerobot_serve.ros.process.node_runtime import UserError
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.tools.reference import diagrams, interface_files, parameter_files
from lerobot_serve.tools.reference.node_endpoints import INTERFACE_PACKAGE

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

Values that `network_profile` sets for parameters that are not given.
"""

MESSAGES = """# Messages

Made from the interface files by `make docs`; do not edit. `ros2 interface show` shows the same,
for example `ros2 interface show lerobot_serve_interfaces/msg/Observation`.

A name with `~/` lies below its node (`/policy_server/status`), one without `/` in the namespace of
the node (`/robot_1/episode_outcome`). A field without a description is described by the line
above it or by its name. How the parts work together, and what a version may change, is in
[architecture.md](architecture.md#the-contract).
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        '--write',
        action='store_true',
        help='write docs/parameters.md, docs/messages.md, the state diagrams in docs/*.md and the '
        'comments in config/*.yaml below the current folder',
    )


def reference() -> str:
    """Return the page on parameters."""
    parts = [f'## {name}\n\n{markdown_table(parameters)}\n' for name, parameters in NODES.items()]
    return '\n'.join([INTRODUCTION, *parts, f'{PROFILES}\n{network_profiles.profiles_table()}\n'])


def messages() -> str:
    """Return the page on messages, from the installed interface files."""
    folder = Path(get_package_share_directory(INTERFACE_PACKAGE))
    return f'{MESSAGES}\n{interface_files.reference(folder)}'


# page -> its generator
PAGES = {'parameters.md': reference, 'messages.md': messages}


# files whose comments are generated
PARAMETER_FILES = tuple(
    Path('config') / name for name in ('server.yaml', 'edge.yaml', 'router.yaml', 'fleet.yaml')
)


def main(options: argparse.Namespace) -> int:
    if not options.write:
        print('\n'.join(make() for make in PAGES.values()))
        return 0
    docs, config = Path('docs'), Path('config')
    if not docs.is_dir() or not config.is_dir():
        raise UserError('no folders docs and config here; run this at the top of the repository')
    pages = {docs / name: make() for name, make in PAGES.items()}
    files = {
        path: parameter_files.with_comments(path.read_text(), NODES) for path in PARAMETER_FILES
    }
    for path, content in (diagrams.pages_with_diagrams(docs) | pages | files).items():
        path.write_text(content)
        print(f'wrote {path}')
    return 0
