# SPDX-License-Identifier: Apache-2.0
"""The folder that a verb writes its results to."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.ros.process.node_runtime import UserError


def make_folder(folder: Path) -> None:
    """Make the folder where it is missing. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{folder} cannot be made: {error.strerror}') from error
