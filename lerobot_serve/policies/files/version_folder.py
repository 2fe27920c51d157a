# SPDX-License-Identifier: Apache-2.0
"""
What the manifest of a version says of the policy in its folder. No torch, any thread.

A version has the name under which it was published, so that its fingerprint does not depend on
the store that it is in.
"""

from __future__ import annotations

from pathlib import Path

from lerobot_serve.policies.base import PolicyError
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.manifest import Manifest, read_manifest
from lerobot_serve.versions.verifying import is_version


def version_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a version; None for any other folder. Raises PolicyError."""
    if not is_version(folder):
        return None
    try:
        return read_manifest(folder)
    except VersionError as error:
        raise PolicyError(str(error)) from None


def version_name(folder: Path) -> str:
    """Return the name of a version, empty for any other folder. Raises PolicyError."""
    manifest = version_manifest(folder)
    return manifest.name if manifest else ''
