# SPDX-License-Identifier: Apache-2.0
"""Find the folder that a swap or a parameter names, below policy_root. Any thread."""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.parameters import ParameterError
from lerobot_serve.policies.lerobot.hub import hub_policy
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.layout import Layout
from lerobot_serve.versions.store import find_id


class SwapRefused(Exception):
    """A swap that is not possible; the text has the cause and what to do."""


def folder_below(root: str, given: str) -> Path:
    """
    Return the real path of a folder below `root`, given relative to it or absolute; where the root
    is a store, a version may be given as everywhere. Raises SwapRefused.
    """
    if not root:
        raise SwapRefused(
            'policy_root is empty, so that the policy cannot change while the server runs; '
            'restart it with policy_root, the folder below which its policies are'
        )
    if not given or '\0' in given:
        raise SwapRefused(
            f'policy_path must name a folder below policy_root ({root!r}), got {given!r:.80}'
        )
    real_root = Path(root).resolve()
    given = version_of(real_root, given)
    # resolve() follows links, so that a link to outside of the root is refused
    folder = (real_root / given).resolve()
    if not folder.is_relative_to(real_root) or folder == real_root:
        raise SwapRefused(
            f'policy_path must be below policy_root ({root!r}), got {given!r}, which is '
            f'{str(folder)!r}; copy the policy there'
        )
    if not folder.is_dir():
        raise SwapRefused(
            f'{str(folder)!r} is not a folder; give that of a policy below policy_root ({root!r})'
        )
    return folder


def version_of(root: Path, given: str) -> str:
    """Return the id of a version that is given in another way; `given` for anything else."""
    if '/' in given or (root / given).exists() or not Layout(root).lock.is_file():
        return given
    try:
        return find_id(given, Layout(root).ids(), f'the store {root}')
    except VersionError as error:
        raise SwapRefused(str(error)) from None


def check_policy_path_change(present: ServerParameters, wanted: ServerParameters) -> None:
    """Raise ParameterError for a policy_path outside the policy_root set at start."""
    if wanted.policy_path == present.policy_path:
        return
    root = present.policy_root
    if not root:
        raise ParameterError(
            f'policy_path is fixed at start ({present.policy_path!r}); restart the node with the '
            'new value, or with policy_root, the folder below which it may change'
        )
    if hub_policy(wanted.policy_path):
        raise ParameterError(
            f'policy_path {wanted.policy_path!r} is not a folder; a policy of the Hugging Face '
            f'hub is named at start, at runtime give a folder below policy_root ({root!r})'
        )
    # resolve() follows links, so that a link to outside of the folder is refused
    if not Path(wanted.policy_path).resolve().is_relative_to(Path(root).resolve()):
        raise ParameterError(
            f'policy_path must be below policy_root ({root!r}), got {wanted.policy_path!r}; copy '
            'the policy there'
        )
