# SPDX-License-Identifier: Apache-2.0
"""What differs between two versions, by their manifests alone. Pure; any thread."""

from __future__ import annotations

from dataclasses import dataclass

from lerobot_serve.versions.manifest import Manifest, ManifestFile

FIELDS = ('policy_kind', 'created', 'parent', 'dataset_sha256', 'note', 'hub')


@dataclass(frozen=True, slots=True)
class FieldDifference:
    """A field with the values of both manifests."""

    name: str
    first: str
    second: str


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that is in one version alone, or in both with other content."""

    path: str
    first: ManifestFile | None
    second: ManifestFile | None

    @property
    def is_changed(self) -> bool:
        return self.first is not None and self.second is not None


@dataclass(frozen=True, slots=True)
class Differences:
    """`same_files` is a count; `is_parent`: one version is the parent of the other."""

    fields: tuple[FieldDifference, ...]
    files: tuple[FileDifference, ...]
    same_files: int
    is_parent: bool


def differences(first: Manifest, second: Manifest) -> Differences:
    """Return what differs."""
    firsts = {each.path: each for each in first.files}
    seconds = {each.path: each for each in second.files}
    files = tuple(
        FileDifference(path, firsts.get(path), seconds.get(path))
        for path in sorted(firsts.keys() | seconds.keys())
        if firsts.get(path) != seconds.get(path)
    )
    pairs = ((name, getattr(first, name), getattr(second, name)) for name in FIELDS)
    return Differences(
        tuple(FieldDifference(name, one, other) for name, one, other in pairs if one != other),
        files,
        len(firsts.keys() & seconds.keys()) - sum(each.is_changed for each in files),
        first.parent == second.id or second.parent == first.id,
    )
