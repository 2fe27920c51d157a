# SPDX-License-Identifier: Apache-2.0
"""The folder of ROS for what nodes and verbs keep: ROS_HOME, or ~/.ros."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = '$ROS_HOME'


def ros_home() -> Path:
    """Return the folder, which need not exist."""
    return Path(os.environ.get('ROS_HOME') or Path.home() / '.ros')


def expanded(path: str) -> Path:
    """Return a path with $ROS_HOME or ~ at its start replaced. Raises RuntimeError."""
    first, _, rest = path.partition('/')
    return ros_home() / rest if first == VARIABLE else Path(path).expanduser()
