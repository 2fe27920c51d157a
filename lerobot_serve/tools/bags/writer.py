# SPDX-License-Identifier: Apache-2.0
"""
Writes a bag: a folder with one MCAP file, laid out as by `ros2 bag record -s mcap`.

Messages are gathered in chunks; `flush` ends one. Flushed messages survive the process, a closed
bag survives a power failure. A temporary bag has the suffix RECORDING until it is closed: a folder
without it is a whole bag. One thread.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, cast, IO

from mcap.writer import CompressionType, Writer

from lerobot_serve import __version__
from lerobot_serve.atomic_file import replacement_of, sync_folder
from lerobot_serve.experience.bag_files import RECORDING
from lerobot_serve.tools.bags import metadata
from lerobot_serve.tools.bags.message import BagError, BagMessage
from lerobot_serve.tools.bags.metadata import BagContents, BagTopic

# the next message ends a larger chunk
CHUNK_BYTES = 1 << 20
# a bag has unsigned times, its readers have signed ones
LAST_NS = (1 << 63) - 1


class BagWriter:
    """See the module. Raises OSError when the disk is full; then call `abort`."""

    def __init__(self, folder: Path, *, distro: str = '', is_temporary: bool = False) -> None:
        """
        `is_temporary`: the folder is FOLDER.recording until `close`. Raises BagError for a folder
        that exists or cannot be created.
        """
        self.folder, self._distro = folder, distro
        self.current_folder = recording_folder(folder) if is_temporary else folder
        self.path = self.current_folder / f'{folder.name}_0.mcap'
        try:
            if is_temporary and folder.exists():
                raise FileExistsError
            self.current_folder.mkdir(parents=True)
            self._file = RevertibleFile(self.path)
        except FileExistsError:
            raise BagError(f'{folder} exists already; name a new folder') from None
        except OSError as error:
            raise BagError(f'{folder} cannot be created: {error.strerror or error}') from error
        # uncompressed, as rosbag2 by default: images are already compressed
        output = cast(IO[Any], self._file)
        self._mcap = Writer(output, chunk_size=CHUNK_BYTES, compression=CompressionType.NONE)
        self._mcap.start(profile='ros2', library=f'lerobot_serve {__version__}')
        self._file.keep()
        self.contents = BagContents({}, {})
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}

    @property
    def destination(self) -> str:
        return str(self.folder)

    @property
    def size_bytes(self) -> int:
        """The size of the file without unflushed messages."""
        return self._file.tell()

    def add_topic(self, topic: BagTopic) -> None:
        """Create a channel for a topic; ignores a known topic."""
        if topic.name in self._channels:
            return
        if topic.type not in self._schemas:
            self._schemas[topic.type] = self._mcap.register_schema(
                topic.type, topic.encoding, topic.definition.encode()
            )
        about = {
            'offered_qos_profiles': metadata.profiles_as_yaml(topic.profiles),
            'topic_type_hash': topic.type_hash,
        }
        self._channels[topic.name] = self._mcap.register_channel(
            topic.name, 'cdr', self._schemas[topic.type], about
        )
        self.contents.topics[topic.name] = topic
        self.contents.counts[topic.name] = 0

    def write(self, message: BagMessage) -> None:
        """
        Append a message of a topic that was added. A time of a clock that no bag can hold, as one
        before 1970, becomes the nearest one.
        """
        received_ns, sent_ns = _in_range(message.stamp_ns), _in_range(message.sent_ns)
        channel = self._channels[message.topic]
        self._mcap.add_message(channel, received_ns, message.data, sent_ns)
        self.contents.add(message.topic, received_ns)

    def flush(self) -> None:
        """Write all gathered messages into the file."""
        self._mcap.flush()  # type: ignore[no-untyped-call] # mcap has no types there
        self._file.keep()

    def close(self) -> None:
        """Finish the file, write metadata.yaml and give the folder its name. Raises OSError."""
        self.flush()
        content = metadata.bag_information(self.contents, [self.path.name], self._distro)
        self._mcap.add_metadata('rosbag2', {'serialized_metadata': metadata.as_yaml(content)})
        self._mcap.finish()  # type: ignore[no-untyped-call] # mcap has no types there
        self._file.keep()
        self._file.sync()
        self._file.close()
        write_metadata(self.current_folder, metadata.as_yaml({metadata.METADATA_ROOT: content}))
        finish_folder(self.current_folder, self.folder)

    def abort(self) -> None:
        """Close the file after its last complete chunk, without a footer."""
        self._file.close()


def _in_range(time_ns: int) -> int:
    return min(max(time_ns, 0), LAST_NS)


def recording_folder(folder: Path) -> Path:
    """Return where a temporary bag is until it is closed."""
    return folder.with_name(folder.name + RECORDING)


def write_metadata(folder: Path, text: str) -> None:
    """Write metadata.yaml atomically: `ros2 bag` refuses a partial one. Raises OSError."""
    with replacement_of(folder / metadata.METADATA_FILE, durable=True) as part:
        part.write_text(text)
        sync_folder(part)


def finish_folder(current: Path, folder: Path) -> None:
    """Give a bag its name, durably. Raises OSError."""
    if current != folder:
        current.rename(folder)
    sync_folder(folder.parent)


class RevertibleFile:
    """Unbuffered output file; reverts a partial write."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, FileExistsError for an existing file."""
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = self._kept = 0

    def write(self, data: bytes) -> int:
        """Write the data. Raises OSError after reverting the file to the last `keep`."""
        left = memoryview(data)
        try:
            while left:
                count = os.write(self._handle, left)
                left = left[count:]
                self._size += count
        except OSError:
            self._revert()
            raise
        return len(data)

    def _revert(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, self._kept)
            os.lseek(self._handle, self._kept, os.SEEK_SET)
        self._size = self._kept

    def keep(self) -> None:
        """Keep all data written so far."""
        begin, self._kept = self._kept, self._size
        # the kernel begins to write now, so that the `sync` of the end is short
        os.posix_fadvise(self._handle, begin, self._size - begin, os.POSIX_FADV_DONTNEED)

    def sync(self) -> None:
        """Wait until the disk has all data. Raises OSError."""
        os.fsync(self._handle)

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """Close the file; may be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1
