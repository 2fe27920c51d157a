# SPDX-License-Identifier: Apache-2.0
"""The folder for the state of a node that survives its restart. Any thread."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.parameters import ParameterError
from lerobot_serve.ros_home import ros_home
from lerobot_serve.wire.names import file_name


def state_path(given: str, node_name: str) -> Path:
    """
    Return the path of the folder, which need not exist: `given`, or one named after the node
    below ROS_HOME. Raises ParameterError.
    """
    folder = (
        Path(given) if given else ros_home() / 'lerobot_serve' / file_name(node_name.strip('/'))
    )
    try:
        if '\0' in given:
            raise ValueError('it holds a null byte')
        return folder.expanduser()
    except (RuntimeError, ValueError) as error:
        raise _refused(folder, error) from error


def state_folder(given: str, node_name: str) -> Path:
    """Create the folder of `state_path` if needed and return it. Raises ParameterError."""
    folder = state_path(given, node_name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _refused(folder, error) from error
    return folder


def _refused(folder: Path, error: Exception) -> ParameterError:
    why = getattr(error, 'strerror', None) or error
    return ParameterError(
        f'state_folder {str(folder)!r} cannot be created: {why}; set a writable folder'
    )
