# SPDX-License-Identifier: Apache-2.0
"""Folders of small policies, stores, and versions in them; neither torch nor ROS."""

from __future__ import annotations

from pathlib import Path
import random

from lerobot_serve.policies.files.policy_folder import fingerprint
from lerobot_serve.versions.manifest import Manifest, MANIFEST_FILE
from lerobot_serve.versions.publishing import Details, PolicyIdentity, publish
from lerobot_serve.versions.store import check, VersionStore

CREATED = '2026-11-26T18:30:00Z'
SHA = '0' * 64


def policy_folder(folder: Path, seed: int = 1, size_bytes: int = 20_000) -> Path:
    """Write a folder as a policy has it, with a file in a folder below."""
    (folder / 'meta').mkdir(parents=True)
    (folder / 'config.json').write_text(f'{{"seed": {seed}}}')
    (folder / 'model.safetensors').write_bytes(random.Random(seed).randbytes(size_bytes))
    (folder / 'meta' / 'info.json').write_text('{}')
    return folder


def identify(folder: Path) -> PolicyIdentity:
    """Return an identity in the way of the policy kinds: named files, whatever else is there."""
    files = [folder / name for name in ('config.json', 'model.safetensors')]
    return PolicyIdentity(fingerprint('act', files), 'lerobot')


def published(store: VersionStore, folder: Path, **details: object) -> Manifest:
    return publish(store, folder, identify, Details(**{'created': CREATED, **details})).manifest


def version(store: VersionStore, folder: Path, seed: int = 1, **details: object) -> Manifest:
    """Make a policy of a seed and publish it."""
    return published(store, policy_folder(folder / f'policy_{seed}', seed), **details)


def check_whole(store: VersionStore) -> list[str]:
    """Fail unless each version of a store has all it names; return their ids."""
    ids = store.ids()
    for each in ids:
        assert check(store.path(each)).id == each
    others = {path.name for path in store.folder.iterdir()} - {*ids, '.store'}
    assert not others
    return ids


def damage(store: VersionStore, version_id: str, name: str = 'model.safetensors') -> Path:
    """Change one byte of a file; return it."""
    file = store.path(version_id) / name
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o644)
    file.write_bytes(data)
    return file


def rewritten_manifest(store: VersionStore, version_id: str, old: str, new: str) -> None:
    file = store.path(version_id) / MANIFEST_FILE
    text = file.read_text()
    assert old in text
    file.chmod(0o644)
    file.write_text(text.replace(old, new))
