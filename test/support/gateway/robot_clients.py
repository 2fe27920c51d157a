# SPDX-License-Identifier: Apache-2.0
"""LeRobot's robot clients with a robot plug-in of a folder, for the thread of a test."""

from __future__ import annotations

import json
import os
from pathlib import Path
import subprocess
import sys
from typing import Any

from support.paths import module_environment


class RobotClients:
    """The processes of LeRobot, numbered from 0 in the order of their start."""

    def __init__(self, folder: Path, plugin: Path) -> None:
        """Logs go to `folder`; `plugin` is where the distribution of the robot is installed."""
        self.folder, self.count = folder, 0
        environment = module_environment()
        environment['PYTHONPATH'] = os.pathsep.join([str(plugin), environment['PYTHONPATH']])
        environment['HF_HOME'] = str(folder / 'huggingface')
        command = [sys.executable, '-m', 'support.gateway.robot_client_process']
        self._process = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.PIPE, text=True
        )

    def start(self, configuration: dict[str, Any]) -> int:
        """Start a client; return its number."""
        self._say(json.dumps(configuration))
        self.count += 1
        return self.count - 1

    def interrupt(self, number: int) -> None:
        """Press Ctrl-C for a client."""
        self._say(f'end {number}')

    def _say(self, line: str) -> None:
        assert self._process.stdin
        self._process.stdin.write(line + '\n')
        self._process.stdin.flush()

    def log(self, number: int) -> str:
        file = self.folder / f'robot_client_{number}.log'
        return file.read_text() if file.exists() else ''

    def end(self) -> None:
        """End all; pytest shows the end of their logs below a failure."""
        self._process.kill()
        assert self._process.stdin
        self._process.stdin.close()
        self._process.wait()
        for number in range(self.count):
            print(f'--- robot client {number}\n{self.log(number)[-1500:]}')
