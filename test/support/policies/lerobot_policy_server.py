# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's own async server, unchanged, in a process of its own.

    python -m support.policies.lerobot_policy_server PORT
"""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import socket
import subprocess
import sys

from lerobot_serve.tools.processes import end_with_parent
from support.waiting import wait_until

TESTS = Path(__file__).parents[2]
MODULE = 'support.policies.lerobot_policy_server'
LIMIT_S = 120.0


@contextlib.contextmanager
def lerobot_server(folder: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Give a server that listens; it writes its logs below `folder`."""
    search = os.pathsep.join([str(TESTS), *filter(None, [os.environ.get('PYTHONPATH')])])
    log = folder / f'lerobot_{port}.log'
    with log.open('ab') as output:
        process = subprocess.Popen(
            end_with_parent([sys.executable, '-m', MODULE, str(port)]),
            cwd=folder,
            env={**os.environ, 'PYTHONPATH': search},
            stdout=output,
            stderr=output,
        )
    try:
        wait_until(lambda: listens(port) or process.poll() is not None, 'it listens', LIMIT_S)
        assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(('127.0.0.1', port)) == 0


def serve(port: int) -> None:
    from lerobot_serve.policies.lerobot.compat import lerobot

    lerobot()
    import torch

    torch.set_num_threads(1)
    from lerobot.async_inference.configs import PolicyServerConfig
    from lerobot.async_inference.policy_server import serve

    serve(PolicyServerConfig(host='127.0.0.1', port=port, inference_latency=0))


if __name__ == '__main__':
    serve(int(sys.argv[1]))
