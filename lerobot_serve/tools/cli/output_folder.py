# SPDX-License-Identifier: Apache-2.0
"""Creates the folder for the results of a verb."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.errors import UserError


def make_folder(folder: Path) -> None:
    """Create the folder if it is missing. Raises UserError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f'{folder} cannot be created: {error.strerror}') from error
