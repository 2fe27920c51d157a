# SPDX-License-Identifier: Apache-2.0
"""A person who types the commands of a page, in two terminals and with a home of its own."""

from __future__ import annotations

import os
from pathlib import Path
import shlex
import subprocess

from lerobot_serve.tools.processes import end_with_parent, executable_path

# the longest command converts a hundred bags, on a machine that others share
STEP_S = 600.0


class Walk:
    """A person with two terminals and a home of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._environment = self.environment(folder)
        self._log = folder / 'up.log'

    @staticmethod
    def environment(folder: Path) -> dict[str, str]:
        """Return the environment of a person whose home is a folder."""
        return {**os.environ, 'ROS_HOME': str(folder / 'ros'), 'HOME': str(folder)}

    def _start(self, line: str, output: object) -> subprocess.Popen[bytes]:
        program, *words = shlex.split(line)
        return subprocess.Popen(
            end_with_parent([str(executable_path(program)), *words]),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=self._folder,
        )

    def up(self, line: str) -> subprocess.Popen[bytes]:
        with self._log.open('w') as log:
            return self._start(line, log)

    @property
    def log(self) -> str:
        return self._log.read_text(errors='replace')

    def types(self, line: str) -> tuple[int, str]:
        """Run a command; return its exit status and what it prints."""
        process = self._start(line, subprocess.PIPE)
        try:
            printed, _ = process.communicate(timeout=STEP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return process.returncode, printed.decode()
