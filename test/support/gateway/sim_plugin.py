# SPDX-License-Identifier: Apache-2.0
"""The simulated arm as a robot of LeRobot, installed as a user installs it."""

from __future__ import annotations

from pathlib import Path
import shutil
import subprocess
import sys

from support.paths import REPOSITORY

PLUGIN = REPOSITORY / 'examples' / 'lerobot_robot_reach_sim'
# without an index: setuptools is that of the workspace
OPTIONS = ('--quiet', '--no-input', '--no-deps', '--no-index', '--no-build-isolation')


def installed_plugin(target: Path) -> Path:
    """Install the plug-in into a folder; return the folder."""
    # pip builds beside the sources
    source = shutil.copytree(PLUGIN, target.with_name(f'{target.name}_source'))
    command = [sys.executable, '-m', 'pip', 'install', *OPTIONS, '--target', target, source]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    return target
