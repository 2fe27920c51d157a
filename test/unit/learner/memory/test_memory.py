# SPDX-License-Identifier: Apache-2.0
"""What a learner keeps: once, durable, and refused when it is damaged or of others."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest
from support.learner.learner_rig import episode
from support.paths import module_environment
from support.processes.full_disk import files_of_at_most

from lerobot_serve.learner.database import (
    Database,
    MemoryNotWritten,
    MemoryRefused,
    VERSION,
)
from lerobot_serve.learner.memory import Learned, Memory, PLACE_LIMIT, RoundEnd
from lerobot_serve.learner.selection import Place

ONE, TWO = f'{1:064x}', f'{2:064x}'


@pytest.fixture
def memory(tmp_path):
    made = Memory(tmp_path)
    yield made
    made.close()


def test_an_episode_is_kept_once(memory, tmp_path):
    first = episode(1, tmp_path)
    assert memory.learn(first) is Learned.NEW
    assert memory.learn(first) is Learned.REPEATED
    copy = episode(2, tmp_path, sha256=ONE, episode_id='e1', host='there')
    assert memory.learn(copy) is Learned.DOUBLE
    assert memory.learn(episode(3, tmp_path, episode_id='e1')) is Learned.OTHER_BAG
    assert memory.episodes() == [first]
    assert memory.places(ONE) == [Place('here', first.path), Place('there', copy.path)]


def test_another_bag_replaces_one_that_no_round_was_given(memory, tmp_path):
    cut = episode(1, tmp_path, outcome='')
    memory.learn(cut)
    memory.learn(episode(3, tmp_path, sha256=ONE, episode_id='e1', host='there'))
    rest = episode(2, tmp_path, episode_id='e1')
    assert memory.replace(ONE, rest)
    assert memory.episodes() == [rest]
    assert memory.places(ONE) == [] and memory.places(TWO) == [Place('here', rest.path)]
    assert memory.learn(cut) is Learned.OTHER_BAG
    memory.set_dataset(memory.begin_round('p@0').number, 'd' * 64, [TWO])
    assert not memory.replace(TWO, episode(4, tmp_path, episode_id='e1'))
    assert memory.episodes() == [rest]


def test_the_places_of_an_episode_are_bounded(memory, tmp_path):
    for number in range(3 * PLACE_LIMIT):
        memory.learn(episode(number, tmp_path, sha256=ONE, episode_id='e1'))
    places = memory.places(ONE)
    assert len(places) == PLACE_LIMIT
    assert Place('here', str(tmp_path / 'bag_0')) in places


def test_a_round_ends_with_its_version_and_its_episodes_at_once(memory, tmp_path):
    for number in (1, 2):
        memory.learn(episode(number, tmp_path))
    record = memory.begin_round('p@0')
    memory.set_dataset(record.number, 'd' * 64, [ONE])
    memory.set_trained(record.number, 'p@1', '/out')
    assert memory.used() == set() and memory.versions() == []
    memory.set_published(record.number, 'p@1')
    assert memory.used() == {ONE}
    assert [(each.id, each.parent, each.round) for each in memory.versions()] == [
        ('p@1', 'p@0', 1)
    ]
    assert memory.open_round is None


def test_an_open_round_is_begun_again_under_its_number(memory, tmp_path):
    memory.learn(episode(1, tmp_path))
    first = memory.begin_round('p@0')
    memory.set_dataset(first.number, 'd' * 64, [ONE])
    memory.set_trained(first.number, 'p@1', '/out')
    again = memory.begin_round('p@9')
    assert (again.number, again.attempt) == (1, 2)
    assert memory.open_round == again
    assert memory.used_by([1]) == set()
    memory.end_round(1, RoundEnd.FAILED, 'why')
    assert memory.begin_round('p@0').number == 2


def test_only_a_process_that_was_killed_counts_as_a_death(memory):
    memory.begin_process()
    memory.begin_round('p@0')
    assert memory.begin_process().deaths == 1
    memory.set_running(False)
    assert memory.begin_process().deaths == 1


def test_verdicts_are_kept_by_the_hash_of_a_fingerprint(memory, tmp_path):
    assert memory.reject('a@11', 'worse')
    assert not memory.reject('b@11', 'again')
    again = Memory(tmp_path)
    assert again.rejected() == {'11': 'worse'}
    assert again.accept('c@11') and not again.accept('c@11')
    assert (again.rejected(), again.promoted()) == ({}, {'11'})
    again.close()


def test_a_pause_is_kept(memory, tmp_path):
    assert not memory.is_paused
    memory.set_paused(True)
    again = Memory(tmp_path)
    assert again.is_paused
    again.close()


@pytest.mark.parametrize(
    'content', [b'not a database at all', b'SQLite format 3\x00' + b'\xff' * 5000, b'\x00' * 4096]
)
def test_a_damaged_file_is_refused_and_not_changed(tmp_path, content):
    file = tmp_path / 'learner.sqlite'
    file.write_bytes(content)
    with pytest.raises(MemoryRefused, match=r'is damaged|is not of a learner'):
        Memory(tmp_path)
    assert file.read_bytes() == content


def test_a_flipped_page_is_refused(tmp_path):
    memory = Memory(tmp_path)
    for number in range(50):
        memory.learn(episode(number, tmp_path / 'bags'))
    memory.close()
    file = tmp_path / 'learner.sqlite'
    data = bytearray(file.read_bytes())
    data[4096:8192] = bytes(4096)
    file.write_bytes(data)
    with pytest.raises(MemoryRefused, match='restore it from a backup'):
        Memory(tmp_path)


def test_a_file_of_others_or_of_a_newer_version_is_refused(tmp_path):
    file = tmp_path / 'learner.sqlite'
    other = sqlite3.connect(file)
    other.execute('CREATE TABLE notes (text TEXT)')
    other.close()
    with pytest.raises(MemoryRefused, match='is not of a learner'):
        Memory(tmp_path)
    file.unlink()
    Memory(tmp_path).close()
    newer = sqlite3.connect(file)
    newer.execute(f'PRAGMA user_version = {VERSION + 1}')
    newer.close()
    with pytest.raises(MemoryRefused, match='newer lerobot_serve'):
        Memory(tmp_path)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / 'learner.sqlite').mkdir()
    with pytest.raises(MemoryRefused, match='cannot be opened'):
        Memory(tmp_path)


def test_a_full_disk_changes_nothing_and_can_be_written_later(tmp_path):
    memory = Memory(tmp_path)
    size = (tmp_path / 'learner.sqlite').stat().st_size
    number = 0
    with files_of_at_most(size), pytest.raises(MemoryNotWritten, match='make room'):
        for number in range(1000):
            memory.learn(episode(number, tmp_path / 'bags'))
    assert len(memory.episodes()) == number
    assert memory.learn(episode(number, tmp_path / 'bags')) is Learned.NEW
    memory.close()


def test_a_transaction_of_an_error_changes_nothing(tmp_path):
    database = Database(tmp_path)
    with pytest.raises(ValueError, match='x'), database.transaction():
        database.change('INSERT INTO settings VALUES (?, ?)', 'a', 'b')
        raise ValueError('x')
    assert database.rows('SELECT * FROM settings') == []
    database.close()


KILLED = """
import os, signal, sys
from pathlib import Path
from support.learner.learner_rig import episode
from lerobot_serve.learner.memory import Memory
memory = Memory(Path(sys.argv[1]))
left = int(sys.argv[2])
execute = memory.change
def counted(*values):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return execute(*values)
memory.change = counted
memory.learn(episode(1, Path(sys.argv[1]) / 'bags'))
record = memory.begin_round('p@0')
memory.set_dataset(record.number, 'd' * 64, ['%064x' % 1])
memory.set_trained(record.number, 'p@1', '/out')
memory.set_published(record.number, 'p@1')
print('done')
"""


def test_killed_between_any_two_statements_nothing_is_half(tmp_path):
    ended = False
    for at in range(1, 40):
        folder = tmp_path / str(at)
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, '-c', KILLED, str(folder), str(at)],
            env=module_environment(),
            stdout=subprocess.PIPE,
            timeout=60,
            check=False,
        )
        memory = Memory(folder)
        is_published = bool(memory.versions())
        assert memory.used() == ({ONE} if is_published else set())
        record = memory.last_round
        assert is_published == bool(record and record.end is RoundEnd.PUBLISHED)
        assert not (record and record.trained) or memory.used_by([1]) == {ONE}
        for known in memory.episodes():
            assert memory.places(known.sha256)
        memory.close()
        if done.stdout:
            ended = True
            break
    assert ended and at > 8
