"""The journal of placements: what was written is there again, whoever is killed."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

from journal_rig import Book, CAPACITY, lines_of, names
import pytest

from lerobot_serve.cli.offspring import bound_to_us
from lerobot_serve.router import journal as module
from lerobot_serve.router.decisions import read
from lerobot_serve.router.journal import Journal, JournalInUse
from lerobot_serve.router.split import bucket

CHILD = """
import os, signal, sys
from pathlib import Path
from lerobot_serve.router.journal import Journal
from lerobot_serve.router.sticky import StickyTable
table = StickyTable(1000, Journal(Path(sys.argv[1]), 1000, print))
for number in range(int(sys.argv[2])):
    table.place(f'episode {number}', '', 50)
print('placed', flush=True)
sys.stdin.read() if sys.argv[3] == 'wait' else os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'state' / 'placements.jsonl'


@pytest.fixture
def book(path):
    return Book(path)


def test_what_was_written_is_loaded_in_that_order(book):
    book.place('ep_42')
    book.place('ep_xyz', 'b', split_percent=0)
    book.place('ep "ü"\n\u2028', 'prod', split_percent=None)
    book.place('ep_42', 'b', moved=True, reason='slot a is "drained"\n')
    again = book.again()
    assert list(again.remembered) == ['ep_xyz', 'ep "ü"\n\u2028', 'ep_42']
    assert again.remembered == book.remembered
    assert book.told == again.told == []


def test_each_placement_is_a_line_at_once(book, path):
    sizes = [path.stat().st_size]
    for name in names(5):
        book.place(name)
        sizes.append(path.stat().st_size)
    assert sizes == sorted(set(sizes))
    first, *others = [json.loads(line) for line in lines_of(path)]
    assert first == {'format': 'lerobot_serve placements', 'version': 1}
    assert others[0] == {
        'episode': 'episode 0',
        'bucket': bucket('episode 0'),
        'slot': 'a',
        'split_percent': 50,
    }


def test_the_newest_are_loaded(book, path):
    for name in names(CAPACITY + 7):
        book.place(name)
    book.journal.close()
    assert [n for n, _ in Journal(path, 3, pytest.fail).load()] == names(CAPACITY + 7)[-3:]


def test_loading_closing_and_placing_twice_change_nothing(book):
    for name in names(3) * 2:
        book.place(name)
    first = book.journal.load()
    assert book.journal.load() == first == list(book.remembered.items())
    book.journal.close()
    book.journal.close()
    assert book.again().again().remembered == book.remembered


@pytest.mark.parametrize('count', [700, 2 * module.FEW_LINES + 30])
def test_a_killed_process_loses_nothing(path, count):
    command = [sys.executable, '-c', CHILD, str(path), str(count), 'die']
    ended = subprocess.run(command, capture_output=True, timeout=60)
    assert (ended.stdout, ended.returncode) == (b'placed\n', -signal.SIGKILL)
    # with the larger count it died while the file was written anew
    assert path.with_name('placements.jsonl.new').exists() == (count > 1000)
    loaded = Journal(path, 1000, pytest.fail).load()
    assert [name for name, _ in loaded] == names(count)[-1000:]


# one router, one file


def test_two_routers_cannot_have_one_file(book, path):
    with pytest.raises(JournalInUse, match=r'placements\.jsonl is in use .* state_folder'):
        Journal(path, CAPACITY, pytest.fail)
    book.place('ep_42')
    assert list(book.again().remembered) == ['ep_42']


def test_a_file_is_free_when_its_process_is_killed(path):
    command = [sys.executable, '-c', CHILD, str(path), '1', 'wait']
    with subprocess.Popen(
        bound_to_us(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == b'placed\n'
        with pytest.raises(JournalInUse):
            Journal(path, CAPACITY, pytest.fail)
        child.kill()
        child.wait(60)
    assert list(Book(path).remembered) == names(1)


# the file is written anew


def test_loading_writes_only_what_is_remembered(book, path):
    for name in names(3) * 50:
        book.place(name)
    assert len(lines_of(path)) == 1 + 150
    book.again()
    assert len(lines_of(path)) == 1 + 3
    assert sorted(p.name for p in path.parent.iterdir()) == [path.name, f'{path.name}.lock']


def test_what_a_killed_router_left_half_written_is_written_over(path):
    path.parent.mkdir()
    path.with_name('placements.jsonl.new').write_bytes(b'half a file\n' * 100)
    book = Book(path)
    book.place('ep_42')
    again = book.again()
    assert list(again.remembered) == ['ep_42']
    assert again.told == []


@pytest.fixture
def small(monkeypatch):
    """Make a file that is soon too long."""
    monkeypatch.setattr(module, 'FEW_LINES', 10)
    monkeypatch.setattr(module, 'COPIED_AT_ONCE', 2)


def test_the_file_is_bounded_and_whole_at_every_moment(small, book, path):
    anew, inode = 0, path.stat().st_ino
    for number in range(600):
        book.place(f'episode {number % 250}', 'ab'[number % 2])
        assert len(lines_of(path)) < 2 * CAPACITY + CAPACITY // 2 + 10
        anew += path.stat().st_ino != inode
        inode = path.stat().st_ino
        held, damage = read(path, 10_000)
        assert not damage
        assert not set(book.remembered.items()) - set(held.items())
        # in the order in which they will have to be forgotten
        assert list(held)[-CAPACITY:] == list(book.remembered)
    assert anew == 4
    assert book.told == []
    assert book.journal.failures == 0


def test_an_episode_may_be_forgotten_while_the_file_is_written_anew(small, book, path):
    beside = path.with_name('placements.jsonl.new')
    number = 0
    while not beside.exists():
        book.place(f'episode {number}')
        number += 1
    for name in list(book.remembered)[:60]:
        # robots ask for them again, so that others are forgotten first
        book.remembered.move_to_end(name)
    while beside.exists():
        book.place(f'episode {number}')
        number += 1
    held, damage = read(path, 10_000)
    assert not damage
    assert not set(book.remembered.items()) - set(held.items())
    assert book.journal.failures == 0
