# SPDX-License-Identifier: Apache-2.0
"""The folder that a trainer leaves: prepared beside its place, then renamed. Training thread."""

from __future__ import annotations

from collections.abc import Iterator
import contextlib
import os
from pathlib import Path
import shutil

from lerobot_serve.learner.trainers.base import TrainerError

PART_SUFFIX = '.part'
FILE_READERS, FOLDER_READERS = 0o444, 0o555


@contextlib.contextmanager
def new_policy_folder(output: Path) -> Iterator[Path]:
    """
    Yield a path, which does not exist, for the folder of a policy; it becomes `output` at the end
    of the block. An error in the block leaves nothing. Raises TrainerError.
    """
    if os.path.lexists(output):
        raise TrainerError(f'{output} exists and is not overwritten; give a new folder')
    part = output.with_name(output.name + PART_SUFFIX)
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(part, ignore_errors=True)
        yield part
        make_readable(part)
        os.rename(part, output)
    except OSError as error:
        raise TrainerError(
            f'{output} cannot be written: {error}; free space on the disk, or give another folder'
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def make_readable(folder: Path) -> None:
    """Let every user read a folder: servers may run as another one. Raises OSError."""
    for path in (folder, *folder.rglob('*')):
        if not path.is_symlink():
            readers = FOLDER_READERS if path.is_dir() else FILE_READERS
            path.chmod(path.stat().st_mode & 0o777 | readers)
