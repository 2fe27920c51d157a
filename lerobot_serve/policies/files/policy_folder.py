# SPDX-License-Identifier: Apache-2.0
"""
Which files a policy folder may hold: regular ones, inside the folder. No torch, any thread.

Libraries open these files by their names, so all of them are looked at before the first is read: a
link could name any file of this machine, and a pipe or a device has no end. Links within the
folder are followed, those of the hub's cache, whose snapshots link to its blobs, and those of
installed packages, whose files colcon links.
"""

from __future__ import annotations

import os
from pathlib import Path
import stat

from lerobot_serve.policies.base import PolicyError

ENTRY_LIMIT = 10_000
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
