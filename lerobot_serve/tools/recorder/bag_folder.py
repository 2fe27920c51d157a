# SPDX-License-Identifier: Apache-2.0
"""
The folder in which a recorder writes one bag after the other. The writing thread.

A bag is named by what it holds and the time of its first message, never like one that is there.

The bags of a recorder that was killed are completed: all whole messages are written into a new
file, which then takes the place of the old one. A kill in between changes nothing. A folder with
anything that no recorder writes is left as it is, and so is a bag that cannot be read. Where more
is damaged than the cut end, the old file stays beside the new one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
import os
from pathlib import Path
import shutil
from typing import NamedTuple

from mcap.opcode import Opcode

from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.names import file_name
from lerobot_serve.errors import UserError
from lerobot_serve.experience.bag_files import INTERVALS_FILE, NotAnEpisode, RECORDING
from lerobot_serve.experience.recorded_episode import (
    EpisodeSummary,
    read_summary,
    word_of,
    write_summary,
)
from lerobot_serve.state_folder import FolderLock
from lerobot_serve.tools.bags import mcap_file
from lerobot_serve.tools.bags.mcap_file import StoredMessage
from lerobot_serve.tools.bags.message import BagError, BagMessage, EXECUTED, OUTCOME
from lerobot_serve.tools.bags.metadata import BagTopic, METADATA_FILE, profiles_from_yaml
from lerobot_serve.tools.bags.writer import BagWriter, finish_folder

# the new file in the making is in this folder inside that of its bag
COPY = 'recovered'
# the end of the name of a new version in the making
PART = '.part'
# the end of the name of an old file with damage
DAMAGED = '.damaged'
HEADER_LIMIT = 1024
KILLED = 'recorder killed'


class Recovered(NamedTuple):
    """
    One bag that was completed; one without messages is removed: `is_kept` is false. One that is
    left as it is says `why`. `damaged`: how many parts of the old file cannot be read.
    """

    folder: Path
    is_kept: bool
    messages: int
    why: str = ''
    damaged: int = 0

    @property
    def line(self) -> str:
        """Return a line for the log."""
        if self.why:
            return f'{self.folder.name} is left as it is: {self.why}'
        what = 'completed' if self.is_kept else 'removed: it holds no message'
        if self.damaged:
            what += f'; {self.damaged} parts of it are damaged, the old file stays as *{DAMAGED}'
        return f'{self.folder.name} was cut by the end of its recorder; {what}'


def recover_all(root: Path) -> list[Recovered]:
    """
    Complete the cut bags of a folder. Whatever the strategy, an episode that was cut stays: a
    person may have commanded the robot after its recorder was killed. Raises OSError and BagError.
    """
    cut = sorted(each for each in root.glob(f'*{RECORDING}') if each.is_dir())
    return [recover(each) for each in cut]


def recover(folder: Path) -> Recovered:
    """Complete one cut bag, and give its folder its name. Raises OSError and BagError."""
    final = folder.with_name(folder.name.removesuffix(RECORDING))
    file = folder / f'{final.name}_0.mcap'
    _undo(file)
    if why := _foreign(folder, file):
        return Recovered(folder, True, 0, why)
    if final != folder and final.exists():
        final = free_name(final)
    if (folder / METADATA_FILE).is_file():
        # killed between the end of the bag and its new name
        finish_folder(folder, final)
        return Recovered(final, True, 0)
    copy = folder / COPY
    shutil.rmtree(copy, ignore_errors=True)
    summary = _begun_summary(folder)
    damage: Counter[bool] = Counter()
    count = _rewrite(file, copy, summary, damage)
    if not count and file.stat().st_size > _header_end(file):
        shutil.rmtree(copy)
        return Recovered(folder, True, 0, 'no message of it can be read')
    if not count:
        shutil.rmtree(folder)
        return Recovered(final, False, count)
    if summary:
        write_summary(folder, summary)
    if damage[True]:
        os.replace(file, damaged_file(file))
    _replace(file, copy)
    finish_folder(folder, final)
    return Recovered(final, True, count, damaged=damage[True])


def _begun_summary(folder: Path) -> EpisodeSummary | None:
    """Return the summary of a cut episode, to count its actions again; None for no episode."""
    try:
        found = read_summary(folder)
    except (NotAnEpisode, OSError):
        return None
    robot, node, episode_id = found.robot, found.node, found.episode_id
    return EpisodeSummary(robot=robot, node=node, episode_id=episode_id, outcome='', ended=KILLED)


def damaged_file(file: Path) -> Path:
    """Return where the old file of a bag with damage stays."""
    return file.with_name(file.name + DAMAGED)


def _undo(file: Path) -> None:
    """Give an old file its name again, if the recorder was killed before the new one had it."""
    old = damaged_file(file)
    if not file.exists() and old.is_file() and not old.is_symlink():
        os.replace(old, file)


def _foreign(folder: Path, file: Path) -> str:
    """Return why a folder is not the bag of a recorder; empty for one."""
    if folder.is_symlink() or file.is_symlink() or not file.is_file():
        return f'it has no {file.name}'
    known = {file.name, damaged_file(file).name, METADATA_FILE, INTERVALS_FILE}
    for each in folder.iterdir():
        is_copy = each.name == COPY and each.is_dir() and not each.is_symlink()
        if not is_copy and each.name.removesuffix(PART) not in known:
            return f'no recorder writes {each.name}'
    return ''


def _header_end(file: Path) -> int:
    """Return the size of a file that was killed before its first message."""
    least = len(mcap_file.MAGIC) + mcap_file.HEAD.size
    with file.open('rb') as stream:
        begin = stream.read(least)
    if len(begin) < least or not begin.startswith(mcap_file.MAGIC):
        return least
    opcode, length = mcap_file.HEAD.unpack(begin[len(mcap_file.MAGIC) :])
    # a damaged length must not make a whole bag a header
    return least + length if opcode == Opcode.HEADER and length <= HEADER_LIMIT else least


def free_name(folder: Path) -> Path:
    """Return this path, or one with a number that neither a bag nor a running one has."""
    number, found = 1, folder
    while found.exists() or found.with_name(found.name + RECORDING).exists():
        number += 1
        found = folder.with_name(f'{folder.name}-{number}')
    return found


def _rewrite(file: Path, copy: Path, summary: EpisodeSummary | None, damage: Counter[bool]) -> int:
    """
    Write the whole messages of a file into a bag named like it; return their number. `damage`
    counts what cannot be read: True, or False for the end of a file that was cut.
    """
    writer = BagWriter(copy / file.stem.removesuffix('_0'))
    try:
        for stored in _whole_messages(file, damage):
            writer.add_topic(_bag_topic(stored))
            writer.write(stored.message)
            if summary:
                _add(stored.message, summary)
        writer.close()
    except OSError:
        writer.abort()
        raise
    return writer.contents.messages


def _whole_messages(file: Path, damage: Counter[bool]) -> Iterator[StoredMessage]:
    """Yield the messages of a file, none of one whose first bytes are missing or damaged."""
    try:
        yield from mcap_file.read_stored(
            file, lambda text: damage.update([not text.endswith(mcap_file.CUT)])
        )
    except BagError:
        return


def _bag_topic(stored: StoredMessage) -> BagTopic:
    about, schema = stored.channel.metadata, stored.schema
    return BagTopic(
        stored.channel.topic,
        stored.message.type,
        schema.encoding if schema else '',
        schema.data.decode(errors='replace') if schema else '',
        profiles_from_yaml(about.get('offered_qos_profiles', '')),
        about.get('topic_type_hash', ''),
    )


def _add(message: BagMessage, summary: EpisodeSummary) -> None:
    """Count an executed action, or note the outcome, of an episode."""
    try:
        if message.type == EXECUTED and message.node == summary.node:
            summary.add(message.record())
        elif message.type == OUTCOME:
            outcome = message.record()
            if outcome.episode_id == summary.episode_id:
                # the first one counts, as while it is recorded
                summary.outcome = summary.outcome or word_of(outcome.outcome)
    except Malformed:
        # it is in the bag as it came
        return


def _replace(file: Path, copy: Path) -> None:
    """Put the new file in the place of the old one; metadata.yaml, the mark of its end, last."""
    made = copy / file.stem.removesuffix('_0')
    os.replace(made / file.name, file)
    os.replace(made / METADATA_FILE, file.parent / METADATA_FILE)
    shutil.rmtree(copy)


RECORDER = 'lerobot-serve record'
SECOND_NS = 10**9
# the range of a 32 bit time; a clock may be anywhere
LAST_S = (1 << 31) - 1


class BagFolder:
    """Locked from its creation until `close`."""

    def __init__(self, root: Path) -> None:
        """
        Complete the bags that a killed recorder left.
        Raises BagError if another process uses the folder, or it cannot be written.
        """
        self.root = root
        try:
            self._lock = FolderLock(root, RECORDER, 'folder')
        except UserError as error:
            raise BagError(str(error)) from None
        if self._lock.fault:
            raise BagError(self._lock.fault)
        self.recovered: list[Recovered] = []
        try:
            self.recovered = recover_all(root)
        except (OSError, BagError) as error:
            self._lock.release()
            raise BagError(f'{root}: a cut bag cannot be completed: {error}') from error

    def begin(self, *words: str, begin_ns: int) -> BagWriter:
        """Begin a bag named by `words` and the time of its first message. Raises OSError."""
        second = min(max(begin_ns // SECOND_NS, 0), LAST_S)
        time = datetime.fromtimestamp(second).strftime('%Y%m%d-%H%M%S')
        name = '_'.join([*(file_name(word.strip('/')) for word in words if word), time])
        try:
            folder = free_name(self.root / name)
            return BagWriter(folder, distro=os.environ.get('ROS_DISTRO', ''), is_temporary=True)
        except BagError as error:
            raise OSError(str(error)) from error

    def discard(self, bag: BagWriter) -> None:
        """Remove a bag that was begun and is not wanted."""
        bag.abort()
        shutil.rmtree(bag.current_folder, ignore_errors=True)

    def close(self) -> None:
        """Let others use the folder."""
        self._lock.release()
