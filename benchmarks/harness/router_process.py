# SPDX-License-Identifier: Apache-2.0
"""A router and its servers as processes of their own. Main thread."""

from __future__ import annotations

from collections.abc import Sequence
import contextlib
from pathlib import Path
import subprocess
import tempfile

import numpy as np
from rclpy.node import Node

from benchmarks.harness.nodes import running
from benchmarks.harness.request_session import FPS
from benchmarks.peers.peer_process import CHUNK_ROWS, JOINTS
from lerobot_serve.arrays import Uint8Array

ROUTER = '/policy_router'


def null_policy(cameras: str) -> dict[str, object]:
    """Return the parameters of a server whose policy answers at once."""
    path = f'joints={JOINTS},chunk={CHUNK_ROWS},cameras={cameras},fps={FPS:g}'
    return {'policy_kind': 'null', 'policy_path': path}


# a camera without a size: one server for all of them
POLICY = null_policy('front:0x0')


def start_router(
    stack: contextlib.ExitStack,
    client: Node,
    slots: tuple[str, ...],
    policy: dict[str, object],
    folder: Path,
) -> subprocess.Popen:
    """Start a router and a server for each of its slots. Raises UserError."""
    for slot in slots:
        parameters = policy | {'slot': slot}
        server = running(client, 'policy_server', f'/server_{slot}', parameters, folder)
        stack.enter_context(server)
    return start_router_alone(stack, client, slots, folder)


def start_router_alone(
    stack: contextlib.ExitStack,
    client: Node,
    slots: tuple[str, ...],
    folder: Path,
    under: Sequence[str] = (),
    name: str = ROUTER,
    **more: object,
) -> subprocess.Popen:
    """
    Start a router of such servers, with `more` parameters; `under` is a command that runs it.
    Raises UserError.
    """
    # what a router of an earlier run remembers must not matter
    state = stack.enter_context(tempfile.TemporaryDirectory(dir=folder))
    parameters: dict[str, object] = {'state_folder': state, 'standby_replicas': 0}
    parameters |= {f'slot_{slot}': [f'/server_{slot}'] for slot in slots}
    parameters |= more
    return stack.enter_context(running(client, 'policy_router', name, parameters, folder, under))


def picture(height: int, width: int) -> Uint8Array:
    return np.random.default_rng(1).integers(0, 256, (height, width, 3), np.uint8)
