# SPDX-License-Identifier: Apache-2.0
"""
Generate the reference pages of docs/ from the code and the interface files, and from the list of
what was decided, or accepted, and survives SIGKILL of the process that said so
(docs/durable_state.md).

One thread; `messages` reads the installed interfaces.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from ament_index_python.packages import get_package_share_directory

from lerobot_serve.edge import network_profiles
from lerobot_serve.edge.decisions import Decision
from lerobot_serve.edge.parameters import EdgeParameters
from lerobot_serve.gateway.parameters import GatewayParameters
from lerobot_serve.learner.parameters import LearnerParameters
from lerobot_serve.parameters import markdown_table
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.sim.parameters import SimParameters
from lerobot_serve.tools.reference import interface_files
from lerobot_serve.tools.reference.node_endpoints import INTERFACE_PACKAGE
from lerobot_serve.tools.reference.record_source import records_source

DURABLE_STATE = """# What survives a crash

Generated from the code by `make docs`; do not edit. A reply that says yes means: it is on the
disk, or it is counted at its worst after the restart. Each row is in force again before the node
that starts next commands a robot or places an episode, and nothing but what the last column names
ends it. Where the disk fails, the reply and the state of the node say so.

The cage latches, and the ladder stops, in a control step, which never waits for a disk: the file
follows within half a millisecond, up to 0.2 s when this process itself is busy, and `EdgeState`
says when it could not be written.

Another fleet file (a renamed or copied one, too), the verb `edge` in place of `up`, another name,
user or ROS_HOME is another `state_folder`: the robot then starts without its pause and its latch.
Give it the same `state_folder`, or look at the robot first.
"""


class DurableState(NamedTuple):
    """`node` keeps `what` in `place` until `lifted_by`; `kind` is its name there."""

    node: str
    what: str
    kind: str
    place: str
    lifted_by: str


EDGE, ROUTER, LEARNER = 'edge_controller', 'policy_router', 'learner'
STORE = 'the store: `router.sqlite`, or the database of `state_url`'
DURABLE_STATES = (
    *(
        DurableState(
            EDGE,
            decision.text.removesuffix('.'),
            decision.file,
            f'`state_folder`/`{decision.file}`',
            f'`{decision.lifted_by}`',
        )
        for decision in Decision
    ),
    DurableState(
        ROUTER,
        'Parameters that were set live, the split and the plan among them',
        'parameter',
        STORE,
        'another value; with `router.sqlite` also a change of the parameter file',
    ),
    DurableState(ROUTER, 'Slots that are drained', 'drain', STORE, '`restore SLOT`, or RESTORE'),
    DurableState(
        ROUTER,
        'Verdicts: policies that are barred or promoted',
        'verdict',
        STORE,
        '`rollout resume`, or LIFT_VERDICT',
    ),
    DurableState(
        ROUTER,
        'The rollout: its state, plan, step, counts and evidence',
        'canary',
        STORE,
        '`rollout stop`, or its end',
    ),
    DurableState(
        ROUTER,
        'Episodes that began, and the outcomes that were accepted, until they are in its counts',
        'episodes',
        STORE,
        'the counts of the rollout',
    ),
    DurableState(
        ROUTER,
        'The slot of each episode',
        'placements',
        STORE,
        'the end of the episode, or a drain, which moves it',
    ),
    DurableState(
        ROUTER, 'What a policy has shown in shadow', 'shadow', STORE, 'another policy in its slot'
    ),
    DurableState(
        LEARNER,
        'A person has paused it',
        'paused',
        'the memory in `folder`',
        '`~/resume`',
    ),
)


def durable_state() -> str:
    """Return the page."""
    rows = [f'| {s.node} | {s.what} | {s.place} | {s.lifted_by} |' for s in DURABLE_STATES]
    head = ['| node | what | kept in | ended by |', '|---|---|---|---|']
    return '\n'.join([DURABLE_STATE, *head, *rows, '', NOT_KEPT, ''])


NOT_KEPT = """Not kept: placements and begins of the last moment (after a power cut: seconds), the
replies, commands and shadow samples of the last 5 to 10 s, and what robots and groups have used of
their quotas: a router that starts again admits each at most one burst more (`quota_burst_s`)."""


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
