# SPDX-License-Identifier: Apache-2.0
"""
Look for episodes below folders, and compute the fingerprint of the parent. A child process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from lerobot_serve.experience.scanning import episodes_in
from lerobot_serve.learner.steps.lines import (
    FoundEpisode,
    Report,
    ScanDone,
    ScanJob,
    SkippedFolder,
)
from lerobot_serve.tools.versions.identity import identify
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.manifest import read_manifest
from lerobot_serve.versions.verifying import is_version


def scan(job: ScanJob, report: Callable[[Report], None]) -> ScanDone:
    """Report each episode; return what could not be read beside the parent."""
    faults: list[str] = []
    parent = ''
    try:
        parent = _fingerprint(job.parent) if job.parent else ''
    except VersionError as error:
        faults.append(f'the parent {job.parent} cannot be used: {error}')
    for folder in job.folders:
        try:
            if not folder.is_dir():
                faults.append(f'{folder} is not a folder; create it, or change episode_folders')
                continue
            for episode in episodes_in(folder, partial(_skip, report)):
                report(FoundEpisode(episode))
        except OSError as error:
            faults.append(f'{folder} cannot be read: {error.strerror or error}')
    return ScanDone(parent, tuple(faults))


def _skip(report: Callable[[Report], None], folder: Path, why: str) -> None:
    report(SkippedFolder(str(folder), why))


def _fingerprint(folder: Path) -> str:
    """Return the id of a version, or what a policy server computes. Raises VersionError."""
    return read_manifest(folder).id if is_version(folder) else identify(folder).fingerprint
