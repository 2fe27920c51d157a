# SPDX-License-Identifier: Apache-2.0
"""Find the files installed under share/lerobot_serve."""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import get_package_share_directory


def shared_file(relative: str) -> Path:
    """Return the path of an installed file or folder. Raises PackageNotFoundError."""
    return Path(get_package_share_directory('lerobot_serve')) / relative
