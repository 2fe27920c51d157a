# SPDX-License-Identifier: Apache-2.0
"""Create an output folder, which must be new or empty. No torch, any thread."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.policies.base import PolicyError


def make_empty_folder(folder: Path) -> None:
    """Create a folder, or accept an empty one. Raises PolicyError for any other."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise PolicyError(
            f'{folder} cannot be written to: {error}; give another folder'
        ) from error
    if held:
        raise PolicyError(
            f'{folder} is not empty (it holds {", ".join(held[:3])}) and is not overwritten; '
            'give a new folder'
        )
