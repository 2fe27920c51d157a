# SPDX-License-Identifier: Apache-2.0
"""Finds the package's executables. Any thread."""

from __future__ import annotations

from pathlib import Path

from ament_index_python.packages import get_package_prefix, PackageNotFoundError

from lerobot_serve.errors import UserError


def executable_path(name: str) -> Path:
    """Return the installed executable. Raises UserError."""
    try:
        path = Path(get_package_prefix('lerobot_serve')) / 'lib' / 'lerobot_serve' / name
    except PackageNotFoundError:
        raise UserError('lerobot_serve is not installed; source install/setup.bash') from None
    if not path.exists():
        raise UserError(f'{path} is missing; rebuild the workspace')
    return path
