# SPDX-License-Identifier: Apache-2.0
"""
Find a policy, a robot file or a fleet file: by path, or by the name of one that is installed.

Reads folders only; any thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
import re

from lerobot_serve.errors import UserError
from lerobot_serve.parameters import closest_name
from lerobot_serve.policies.lerobot.hub import hub_policy

KIND = re.compile(r'([a-z][a-z0-9_]*):(.*)', re.DOTALL)
# what is installed below config/: folder, suffix of the files
POLICIES, ROBOTS, FLEETS = ('policies', ''), ('robots', '.yaml'), ('fleets', '.yaml')


def policy_of(text: str, folder: Path) -> dict[str, str]:
    """
    Return policy_path, and policy_kind for KIND:PATH, of a policy: a folder relative to `folder`,
    KIND:PATH, an id of the Hugging Face hub, or the name of a shipped policy. Raises UserError.
    """
    if is_path := existing(text, folder):
        return {'policy_path': str(is_path)}
    if match := KIND.fullmatch(text):
        path = existing(match[2], folder) if match[2] else None
        # the path of some kinds is not a path: null:joints=6,chunk=30
        return {'policy_kind': match[1], 'policy_path': str(path or match[2])}
    if hub_policy(text):
        return {'policy_path': text}
    return {'policy_path': str(shipped_or_path('policy', text, folder, POLICIES))}


def shipped_or_path(what: str, text: str, folder: Path, kind: tuple[str, str]) -> Path:
    """
    Return the file or folder `text`, relative to `folder`, or the shipped one of that name. Raises
    UserError.
    """
    if path := existing(text, folder):
        return path
    known = shipped(*kind)
    if text in known:
        return known[text]
    near = closest_name(text, known)
    hint = f'did you mean {near}? ' if near else ''
    raise UserError(
        f'{what} {text!r} is neither there nor shipped with this package; {hint}shipped are '
        f'{", ".join(known)}'
    )


def existing(text: str, folder: Path) -> Path | None:
    """Return the absolute path if it exists."""
    try:
        path = (folder / Path(text).expanduser()).absolute()
        return path if text and path.exists() else None
    except (OSError, RuntimeError, ValueError):
        # a text too long for a name, or ~ of an unknown user: not a path
        return None


def shipped(folder: str, suffix: str) -> dict[str, Path]:
    """Return the installed files of a folder in config/ by name, none without an installation."""
    root = config_folder()
    if root is None:
        return {}
    found = sorted((root / folder).glob(f'*{suffix}'))
    return {path.name.removesuffix(suffix): path for path in found}


@cache
def config_folder() -> Path | None:
    """Return share/lerobot_serve/config."""
    from ament_index_python.packages import PackageNotFoundError

    from lerobot_serve.ros.package_share import shared_file

    find: Callable[[str], Path] = shared_file
    try:
        return find('config')
    except PackageNotFoundError:
        return None
