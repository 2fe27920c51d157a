# SPDX-License-Identifier: Apache-2.0
"""
Generates the reference pages of docs/ from the code and the interface files.

One thread; `messages` reads the installed interfaces.
"""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import get_package_share_directory

from lerobot_serve.edge import network_profiles
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.parameters import markdown_table
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.tools.reference import interface_files
from lerobot_serve.tools.reference.durable_state import durable_state
from lerobot_serve.tools.reference.node_endpoints import INTERFACE_PACKAGE
from lerobot_serve.tools.reference.record_source import records_source

NODES = {
    'policy_server': ServerParameters,
    'edge_controller': EdgeParameters,
    'policy_router': RouterParameters,
    'gateway': GatewayParameters,
    'learner': LearnerParameters,
    'sim_robot': SimParameters,
}
INTRODUCTION = """# Parameters

Generated from the code by `make docs`; do not edit. A parameter that is not live is read at start
and read-only afterwards. With an invalid value or an unknown name a node does not start and prints
the error as one line; an invalid change is rejected and changes nothing.

Topics also take the standard `qos_overrides.*` parameters.
"""
PROFILES = """## Profiles of edge_controller

Values that `network_profile` sets for parameters that are not set explicitly.
"""

MESSAGES = """# Messages

Generated from the interface files by `make docs`; do not edit. `ros2 interface show` has the same
text, for example `ros2 interface show lerobot_serve_interfaces/msg/Observation`.

A name with `~/` is relative to its node (`/policy_server/status`), one without `/` is relative to
the namespace of the node (`/robot_1/episode_outcome`). A field without a description is described
by the line above it or by its name. [architecture.md](architecture.md#the-contract) describes how
the parts work together and which changes a version allows.
"""


def reference() -> str:
    """Return the page on parameters."""
    parts = [f'## {name}\n\n{markdown_table(parameters)}\n' for name, parameters in NODES.items()]
    return '\n'.join([INTRODUCTION, *parts, f'{PROFILES}\n{network_profiles.profiles_table()}\n'])


def messages() -> str:
    """Return the page on messages, from the installed interface files."""
    return f'{MESSAGES}\n{interface_files.reference(_interfaces())}'


def message_classes() -> str:
    """Return the module with a class for each message, from the installed interface files."""
    return records_source(_interfaces())


def _interfaces() -> Path:
    return Path(get_package_share_directory(INTERFACE_PACKAGE))


# page -> its generator
PAGES = {
    'parameters.md': reference,
    'messages.md': messages,
    'durable_state.md': durable_state,
}


CLASSES = Path('lerobot_serve') / 'contract' / 'records.py'
# files whose comments are generated
PARAMETER_FILES = tuple(
    Path('config') / name
    for name in (
        *('server.yaml', 'edge.yaml', 'router.yaml', 'gateway.yaml', 'learner.yaml', 'fleet.yaml'),
    )
)
