# SPDX-License-Identifier: Apache-2.0
"""The folder for the state that survives a restart of a router."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.parameters import ParameterError
from lerobot_serve.ros_home import ros_home
from lerobot_serve.wire.names import file_name


def state_folder(given: str, node_name: str) -> Path:
    """
    Create the folder if needed and return its path. Raises ParameterError.

    The default is named after the node, below ROS_HOME.
    """
    if given:
        folder = Path(given)
    else:
        folder = ros_home() / 'lerobot_serve' / file_name(node_name.strip('/'))
    try:
        folder = folder.expanduser()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        why = getattr(error, 'strerror', None) or error
        raise ParameterError(
            f'state_folder {str(folder)!r} cannot be created: {why}; set a writable folder'
        ) from error
    return folder
