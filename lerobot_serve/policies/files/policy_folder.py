# SPDX-License-Identifier: Apache-2.0
"""
The folder of a policy: which files it may hold, its fingerprint, and the manifest of a version. No
torch, any thread.

A folder may hold regular files inside of it. Libraries open them by their names, so all of them
are looked at before the first is read: a link could name any file of this machine, and a pipe or a
device has no end. Links within the folder are followed, those of the hub's cache, whose snapshots
link to its blobs, and those of installed packages, whose files colcon links.

A version has the name under which it was published, so that its fingerprint does not depend on
the store that it is in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
import hashlib
import os
from pathlib import Path
import stat
from typing import Annotated, Literal, TypeVar

from msgspec import Meta

from lerobot_serve.files.load import load_file, Record, Refused, rule
from lerobot_serve.policies.base import PolicyCamera, PolicyDescription, PolicyError
from lerobot_serve.policies.runtime.loading_beside import give_way
from lerobot_serve.versions.errors import VersionError
from lerobot_serve.versions.manifest import Manifest, read_manifest
from lerobot_serve.versions.store import is_version

ENTRY_LIMIT = 10_000
BLOCK_BYTES, SHOWN_DIGITS = 1 << 20, 16
# below the folder itself, where files of a policy are
SUBFOLDERS = ('meta',)
SNAPSHOTS, BLOBS = 'snapshots', 'blobs'


def check_folder(folder: Path) -> None:
    """Raise PolicyError for a link out of a folder, and for a device or a pipe in it."""
    if _is_installed(folder):
        return
    try:
        entries = [Path(entry.path) for entry in os.scandir(folder)]
        for name in SUBFOLDERS:
            if (folder / name).is_dir():
                check_inside(folder / name, folder)
                entries += [Path(entry.path) for entry in os.scandir(folder / name)]
    except OSError as error:
        raise PolicyError(f'{folder} cannot be read ({error.strerror}); copy it again') from error
    if len(entries) > ENTRY_LIMIT:
        raise PolicyError(
            f'{folder} holds {len(entries)} files, at most {ENTRY_LIMIT} are looked at; give the '
            'folder of the policy alone'
        )
    for path in entries:
        check_inside(path, folder)


def _is_installed(folder: Path) -> bool:
    """Return whether a folder is of a package that the operator installed."""
    prefixes = filter(os.path.isabs, os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep))
    root = os.path.realpath(folder)
    return any(Path(root).is_relative_to(os.path.realpath(prefix)) for prefix in prefixes)


def check_inside(path: Path, folder: Path) -> None:
    """Raise PolicyError unless a path is missing, or a file or folder below a folder."""
    target, root = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    roots = [root, *([root.parents[1] / BLOBS] if root.parent.name == SNAPSHOTS else [])]
    if not any(target.is_relative_to(each) for each in roots):
        raise PolicyError(
            f'{path} is a link to {target}, outside of its folder; copy the file itself'
        )
    try:
        mode = os.stat(target).st_mode
    except FileNotFoundError:
        return
    except OSError as error:
        raise PolicyError(f'{path} cannot be read ({error.strerror}); copy it again') from error
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise PolicyError(f'{path} is a device or a pipe, which no policy has; remove it')


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


def fingerprint(
    policy_id: str,
    files: Sequence[Path],
    assets: Mapping[str, Path] | None = None,
    settings: Mapping[str, str] | None = None,
) -> str:
    """
    Return id@hash over the contents of `files`, independent of their folder.

    `assets` are files of other folders, each under a unique name, since two tokenizers have files
    of the same name. `settings` are the options that change the output. Raises OSError.
    """
    digest = hashlib.sha256()
    for file in sorted(files, key=lambda path: path.name):
        _add(digest, file.name, file)
    for name, file in sorted((assets or {}).items()):
        _add(digest, f'asset {name}', file)
    for name, value in sorted((settings or {}).items()):
        digest.update(f'setting {name}\0{value}\0'.encode())
    return f'{policy_id}@{digest.hexdigest()[:SHOWN_DIGITS]}'


def _add(digest: hashlib._Hash, name: str, file: Path) -> None:
    digest.update(f'{name}\0{file.stat().st_size}\0'.encode())
    with open(file, 'rb') as handle:
        while block := handle.read(BLOCK_BYTES):
            digest.update(block)
            give_way()


SETTINGS_FILE = 'policy.json'
FORMAT_VERSION = 1
SIZE_LIMIT = 4096
Size = Annotated[int, Meta(ge=1, le=SIZE_LIMIT)]
Name = Annotated[
    str,
    rule(str.isprintable, 'a name of 1 to 128 printable characters', min_length=1, max_length=128),
]
Names = Annotated[
    tuple[Name, ...],
    rule(lambda names: len({*names}) == len(names), 'a list of different names', min_length=1),
]


class CameraJson(Record, frozen=True):
    """A camera that a policy needs."""

    name: Name
    height: Size
    width: Size


class PolicyJson(Record, frozen=True):
    """The fields of every policy.json."""

    format_version: Annotated[
        Literal[1],
        Meta(description=f'{FORMAT_VERSION} (other versions need another lerobot_serve)'),
    ]
    id: Annotated[
        str,
        Meta(pattern=r'^[A-Za-z0-9_.-]{1,64}\Z', description='1 to 64 letters, digits and ._-'),
    ]
    state_names: Names
    action_names: Names
    cameras: tuple[CameraJson, ...]
    chunk_size: Size
    trained_fps: Annotated[float, Meta(gt=0, le=1000)]

    def __post_init__(self) -> None:
        names = [camera.name for camera in self.cameras]
        if len({*names}) < len(names):
            raise ValueError(f'the cameras must have different names, got {names}')

    def described(self, policy_type: str, fingerprint: str, device: str) -> PolicyDescription:
        """Return the description of the policy by this file alone."""
        cameras = [PolicyCamera(each.name, each.height, each.width) for each in self.cameras]
        return PolicyDescription(
            policy_type,
            fingerprint,
            self.state_names,
            self.action_names,
            tuple(cameras),
            self.chunk_size,
            self.trained_fps,
            device=device,
        )

    def fingerprint(self, files: Sequence[Path], name: str = '') -> str:
        """
        Return the fingerprint of files of one folder; `name` is that of the operator. Raises
        PolicyError.
        """
        try:
            return fingerprint(name or version_name(files[0].parent) or self.id, files)
        except OSError as error:
            raise PolicyError(f'cannot read the policy: {error}') from error


T = TypeVar('T', bound=PolicyJson)


def read_policy_json(kind: type[T], file: Path) -> T:
    """Return the content of policy.json. Raises PolicyError; it names file, field and rule."""
    try:
        return load_file(kind, file)
    except Refused as refused:
        raise PolicyError(str(refused)) from None
