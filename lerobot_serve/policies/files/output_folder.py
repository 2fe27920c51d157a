"""A folder that is about to be written: it must be new, or empty. No torch, any thread."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.policies.base import PolicyError


def make_empty_folder(folder: Path) -> None:
    """Make a folder, or take an empty one. Raises PolicyError for one that holds something."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        held = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise PolicyError(
            f'{folder} cannot be written to: {error}; give another folder'
        ) from error
    if held:
        raise PolicyError(
            f'{folder} is not empty (it holds {", ".join(held[:3])}), and nothing is overwritten; '
            'give a new folder'
        )
