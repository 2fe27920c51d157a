# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's own robot clients, unmodified, each a process of its own:

    python -m support.gateway.robot_client_process

LeRobot is imported once. Each line of the standard input is a configuration in JSON, such as
{"server_address": ..., "robot": {...}}: a fork runs it by the main function of
lerobot.async_inference.robot_client in the folder of this process, and its log goes to
robot_client_N.log. The line "end N" presses Ctrl-C for one of them, and waits for its end. They
end with this process.
(test_migration_page_commands.py runs LeRobot's command line.)
"""

from __future__ import annotations

import ctypes
from importlib import import_module
import json
import os
import signal
import sys
import time
import traceback
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1
END_S, POLL_S = 10.0, 0.02


def run(number: int, configuration: dict[str, Any]) -> NoReturn:
    try:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(f'robot_client_{number}.log', os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from lerobot.async_inference import robot_client

        robot_client.register_third_party_plugins()
        robot = configuration.pop('robot')
        robot = robot_client.RobotConfig.get_choice_class(robot.pop('type'))(**robot)
        config = import_module('lerobot.async_inference.configs').RobotClientConfig
        robot_client.async_client(config(robot=robot, **configuration))
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def end(client: int) -> None:
    """
    Press Ctrl-C for a client; kill it where that does not end it. LeRobot closes its channel and
    then waits without a bound for a thread that may be within a call.
    """
    os.kill(client, signal.SIGINT)
    deadline_s = time.monotonic() + END_S
    while os.waitpid(client, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline_s:
            os.kill(client, signal.SIGKILL)
            os.waitpid(client, 0)
            return
        time.sleep(POLL_S)


def main() -> None:
    from lerobot_serve.policies.lerobot import compat

    compat.lerobot()
    import_module('lerobot.async_inference.robot_client')
    clients: list[int] = []
    for line in sys.stdin:
        if line.startswith('end '):
            end(clients[int(line.split()[1])])
            continue
        client = os.fork()
        if not client:
            run(len(clients), json.loads(line))
        clients.append(client)


if __name__ == '__main__':
    main()
