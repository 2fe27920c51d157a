# SPDX-License-Identifier: Apache-2.0
"""Reads all messages of a bag: a folder or one file, MCAP or SQLite. Any thread."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path
import re
import sqlite3

import yaml

from lerobot_serve.tools.bags import metadata
from lerobot_serve.tools.bags.message import BagError, BagMessage

ALL = """
    SELECT topics.name, topics.type, messages.timestamp, messages.data
    FROM messages JOIN topics ON topics.id = messages.topic_id
    ORDER BY messages.timestamp, messages.id
"""


def _read_sqlite(path: Path, on_damage: Callable[[str], None]) -> Iterator[BagMessage]:
    """
    Yield the messages in the order of their stamps; `on_damage` receives the text of an error.

    Raises BagError for a file that is not such a database.
    """
    begun = False
    try:
        with closing(sqlite3.connect(f'{path.resolve().as_uri()}?mode=ro', uri=True)) as database:
            for topic, kind, stamp_ns, data in database.execute(ALL):
                begun = True
                yield BagMessage(topic, kind, stamp_ns, bytes(data))
    except (sqlite3.Error, TypeError) as error:
        if not begun:
            raise BagError(f'{path} cannot be read as a bag: {error}') from error
        on_damage(f'{path} is damaged ({error}); the rest is skipped')


def _read_mcap(path: Path, on_damage: Callable[[str], None]) -> Iterator[BagMessage]:
    # optional package, needed for MCAP only
    from lerobot_serve.tools.bags import mcap_file

    return mcap_file.read(path, on_damage)


READERS = {'.mcap': _read_mcap, '.db3': _read_sqlite}
COMPRESSED = ('.mcap.zstd', '.db3.zstd', '.mcap.lz4', '.db3.lz4')


def is_bag(path: Path) -> bool:
    """Return whether a path has the form of a bag, without opening it."""
    if path.is_dir():
        return (path / metadata.METADATA_FILE).is_file() or bool(_files_in(path))
    return path.name.endswith((*READERS, *COMPRESSED))


def split_bags_and_traces(paths: Iterable[Path | str]) -> tuple[list[Path], list[Path]]:
    """
    Return the paths that have the form of a bag, and those to read as traces: the others, and
    folders of a bag with traces beside it.
    """
    given = [Path(path) for path in paths]
    bags = [path for path in given if is_bag(path)]
    return bags, [path for path in given if path not in bags or any(path.rglob('*.jsonl'))]


class Bag:
    """
    One bag. `damage` lists the parts that could not be read, after `read`; a bag without any is
    complete.
    """

    def __init__(self, path: Path | str) -> None:
        """Raises BagError for a path that is not there, not a bag, or compressed."""
        self.path = Path(path)
        if not self.path.exists():
            raise BagError(f'{self.path} does not exist; name the folder of a bag, or its file')
        self.damage: list[str] = []
        self.files = _files_in(self.path) if self.path.is_dir() else [self.path]
        packed = [file for file in self.files if file.name.endswith(COMPRESSED)]
        if packed:
            raise BagError(
                f'{packed[0]} is compressed as a whole; unpack it first: zstd -d {packed[0].name}'
            )
        if not self.files or self.files[0].suffix not in READERS:
            raise BagError(f'{self.path} is not a bag; {_remedy(self.path)}')
        if _compression(self.files[0].parent).lower() == 'message':
            raise BagError(
                f'the messages of {self.path} are compressed individually; rewrite it with '
                'ros2 bag convert -i BAG -o OPTIONS.yaml (output_bags: [{uri: NEW, all: true}])'
            )

    @property
    def is_complete(self) -> bool:
        return not self.damage

    def read(self) -> Iterator[BagMessage]:
        """Yield all messages, approximately in time order. Raises BagError."""
        self.damage = []
        for file in self.files:
            try:
                yield from READERS[file.suffix](file, self._add_damage)
            except OSError as error:
                raise BagError(f'{file} cannot be read: {error.strerror or error}') from error

    def _add_damage(self, text: str) -> None:
        self.damage.append(text)


def _files_in(folder: Path) -> list[Path]:
    """
    Return the files of a bag in numeric order: 10 after 9. A compressed file counts if it is not
    there unpacked, too, as zstd leaves it.
    """
    endings = (*READERS, *COMPRESSED)
    found = [file for file in folder.iterdir() if file.name.endswith(endings) and file.is_file()]
    names = {file.name for file in found}
    chosen = [
        file
        for file in found
        if not (file.name.endswith(COMPRESSED) and file.name.rpartition('.')[0] in names)
    ]
    return sorted(chosen, key=_in_order)


def _remedy(path: Path) -> str:
    """Return what to name instead of a path that is not a bag."""
    if path.is_dir() and any(each.is_dir() and is_bag(each) for each in path.iterdir()):
        return f'name the bags in it: {path}/*'
    if path.suffix == '.bag':
        return 'of ROS 1; convert it first: rosbags-convert (pip install rosbags)'
    return 'name a file .mcap or .db3, or its folder'


def _in_order(file: Path) -> tuple[str, int]:
    stem = file.name.partition('.')[0]
    match = re.fullmatch(r'(.*?)_(\d+)', stem)
    return (match[1], int(match[2])) if match else (stem, 0)


def _compression(folder: Path) -> str:
    """Return the compression mode of the metadata, empty for none."""
    try:
        content = yaml.safe_load((folder / metadata.METADATA_FILE).read_text())
        mode = content[metadata.METADATA_ROOT]['compression_mode']
    except (OSError, ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError):
        return ''
    # aliases within one another make the text of a few lines endless
    return mode if isinstance(mode, str) else ''
