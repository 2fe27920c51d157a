# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's own robot clients, unmodified, each a process of its own:

    python -m support.gateway.robot_client_process '[{"server_address": ..., "robot": {...}}, ...]'

LeRobot is imported once; each configuration is run in a fork by the main function of
lerobot.async_inference.robot_client, and its log goes to robot_client_N.log. The forks end with
this process. (Its command line would need the package pyyaml-include.)
"""

from __future__ import annotations

import ctypes
from importlib import import_module
import json
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

PR_SET_PDEATHSIG = 1


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


def main() -> None:
    from lerobot_serve.policies.lerobot import compat

    compat.lerobot()
    import_module('lerobot.async_inference.robot_client')
    clients = json.loads(sys.argv[1])
    for number, configuration in enumerate(clients):
        if not os.fork():
            run(number, configuration)
    for _ in clients:
        os.wait()


if __name__ == '__main__':
    main()
