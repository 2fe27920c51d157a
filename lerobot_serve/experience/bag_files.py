# SPDX-License-Identifier: Apache-2.0
"""The files of an episode's bag, and reading them with bounds. Any thread."""

from __future__ import annotations

import os
from pathlib import Path
import stat
from typing import Any

from lerobot_serve.files.parsing import from_json
from lerobot_serve.versions.file_hash import open_regular

METADATA_FILE = 'metadata.yaml'
# who commanded when, the outcome, the policies
INTERVALS_FILE = 'intervals.json'
# the end of the name of a folder until its bag is whole
RECORDING = '.recording'
BAG_END = '.mcap'
MAGIC = b'\x89MCAP0\r\n'


class NotAnEpisode(ValueError):
    """A folder is not the whole bag of one episode; the text says why."""


def is_regular(path: Path) -> bool:
    """Return whether a path is a file, and no link, folder, device or pipe."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def completed_ns(folder: Path) -> int:
    """
    Return when the bag of an episode was completed: metadata.yaml, its last file, is not written
    again. Raises NotAnEpisode and OSError.
    """
    if folder.is_symlink():
        raise NotAnEpisode('it is a link')
    for name in (METADATA_FILE, INTERVALS_FILE):
        if not is_regular(folder / name):
            raise NotAnEpisode(f'it has no file {name}')
    return os.lstat(folder / METADATA_FILE).st_mtime_ns


def bag_file(folder: Path) -> Path:
    """Return the one file of a whole bag. Raises NotAnEpisode and OSError."""
    files = [each for each in folder.iterdir() if each.name.endswith(BAG_END)]
    regular = [each for each in files if is_regular(each)]
    if len(files) != 1 or not regular:
        raise NotAnEpisode(
            f'it must have exactly one *{BAG_END}, a regular file; it has {len(files)}, '
            f'{len(regular)} of them regular'
        )
    _check_ends(files[0])
    return files[0]


def _check_ends(file: Path) -> None:
    """Raise NotAnEpisode for a file that is not an MCAP file or was cut; OSError."""
    with open_regular(file) as stream:
        begin = stream.read(len(MAGIC))
        stream.seek(max(stream.seek(0, os.SEEK_END) - len(MAGIC), 0))
        end = stream.read(len(MAGIC))
    if begin != MAGIC:
        raise NotAnEpisode(f'{file.name} is not an MCAP file')
    if end != MAGIC:
        raise NotAnEpisode(f'{file.name} was cut')


def read_object(file: Path, limit_bytes: int) -> dict[str, Any]:
    """Return the JSON object in a file. Raises NotAnEpisode and OSError."""
    try:
        with open_regular(file) as stream:
            data = stream.read(limit_bytes + 1)
        if len(data) > limit_bytes:
            raise ValueError(f'it has more than {limit_bytes} bytes')
        value = from_json(data)
    except ValueError as error:
        text = ' '.join(str(error).split())[:100]
        raise NotAnEpisode(f'{file.name} cannot be read: {text}') from None
    if not isinstance(value, dict):
        raise NotAnEpisode(f'{file.name} is not a JSON object')
    return value
