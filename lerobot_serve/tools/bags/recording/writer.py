# SPDX-License-Identifier: Apache-2.0
"""
A bag in the making: a folder with one MCAP file, laid out as `ros2 bag record -s mcap` does it.

Messages are gathered in chunks; `flush` ends one, and what was flushed can be read whatever
becomes of the process. One thread.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mcap.writer import CompressionType, Writer

from lerobot_serve import __version__
from lerobot_serve.tools.bags.message import BagError
from lerobot_serve.tools.bags.recording import metadata, qos_profiles
from lerobot_serve.tools.bags.recording.metadata import BagContents, BagTopic

# a larger one is ended by the next message
CHUNK_BYTES = 1 << 20


class BagWriter:
    """See the module. Raises OSError when the disk takes no more; then `give_up` is left."""

    def __init__(self, folder: Path, *, distro: str = '') -> None:
        """Raises BagError for a folder that is there already or cannot be made."""
        self.folder, self._distro = folder, distro
        self.path = folder / f'{folder.name}_0.mcap'
        try:
            folder.mkdir(parents=True)
            self._file = RevertibleFile(self.path)
        except FileExistsError:
            raise BagError(f'{folder} is there already; name a folder that is not') from None
        except OSError as error:
            raise BagError(f'{folder} cannot be made: {error.strerror or error}') from error
        # not compressed, as rosbag2 by default: pictures are compressed already
        self._mcap = Writer(self._file, chunk_size=CHUNK_BYTES, compression=CompressionType.NONE)
        self._mcap.start(profile='ros2', library=f'lerobot_serve {__version__}')
        self._file.keep()
        self.contents = BagContents({}, {})
        self._channels: dict[str, int] = {}
        self._schemas: dict[str, int] = {}

    @property
    def size_bytes(self) -> int:
        """What is in the file by now, without what waits for a flush."""
        return self._file.tell()

    def add_topic(self, topic: BagTopic) -> None:
        """Make a channel; a topic that is there already stays as it is."""
        if topic.name in self._channels:
            return
        if topic.type not in self._schemas:
            self._schemas[topic.type] = self._mcap.register_schema(
                topic.type, topic.encoding, topic.definition.encode()
            )
        about = {
            'offered_qos_profiles': qos_profiles.as_yaml(topic.profiles),
            'topic_type_hash': topic.type_hash,
        }
        self._channels[topic.name] = self._mcap.register_channel(
            topic.name, 'cdr', self._schemas[topic.type], about
        )
        self.contents.topics[topic.name] = topic
        self.contents.counts[topic.name] = 0

    def write(self, topic: str, data: bytes, *, received_ns: int, sent_ns: int) -> None:
        """Append a message of a topic that was added."""
        self._mcap.add_message(self._channels[topic], received_ns, data, sent_ns)
        self.contents.add(topic, received_ns)

    def flush(self) -> None:
        """Bring all that was written into the file."""
        self._mcap.flush()
        self._file.keep()

    def close(self) -> None:
        """Finish the file, and write the metadata beside it."""
        self.flush()
        content = metadata.bag_information(self.contents, [self.path.name], self._distro)
        self._mcap.add_metadata('rosbag2', {'serialized_metadata': metadata.as_yaml(content)})
        self._mcap.finish()
        self._file.keep()
        self._file.close()
        self._write_metadata(metadata.as_yaml({metadata.METADATA_ROOT: content}))

    def _write_metadata(self, text: str) -> None:
        """Write it whole or not at all: `ros2 bag` refuses half of one. Raises OSError."""
        file = self.folder / metadata.METADATA_FILE
        try:
            file.write_text(text)
        except OSError:
            file.unlink(missing_ok=True)
            raise

    def give_up(self) -> None:
        """Close the file as it stands behind the last whole chunk; it has no footer then."""
        self._file.close()


class RevertibleFile:
    """The file: each write goes to the system at once, and half of one can be taken back."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, FileExistsError for a file that is there."""
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        self._size = self._kept = 0

    def write(self, data: bytes) -> int:
        """Raises OSError; then the file is again as it was at the last `keep`."""
        left = memoryview(data)
        try:
            while left:
                count = os.write(self._handle, left)
                left = left[count:]
                self._size += count
        except OSError:
            self._take_back()
            raise
        return len(data)

    def _take_back(self) -> None:
        with contextlib.suppress(OSError):
            os.ftruncate(self._handle, self._kept)
            os.lseek(self._handle, self._kept, os.SEEK_SET)
        self._size = self._kept

    def keep(self) -> None:
        """What was written so far stays."""
        self._kept = self._size

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        pass

    def close(self) -> None:
        """May be called twice."""
        if self._handle >= 0:
            os.close(self._handle)
        self._handle = -1
