"""The journal of placements: whatever the disk does, serving goes on."""

from __future__ import annotations

import contextlib
import os
import resource

from hypothesis import given, settings
from hypothesis import strategies as st
from journal_rig import Book, CAPACITY, lines_of, names
import pytest

from lerobot_serve.router import journal as module
from lerobot_serve.router.decisions import read
from lerobot_serve.router.journal import Journal, JournalInUse


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'state' / 'placements.jsonl'


@pytest.fixture
def book(path):
    return Book(path)


@contextlib.contextmanager
def files_of_at_most(size: int):
    """Let a disk be full: a line is written in part, then nothing."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_told_once_and_nothing_is_lost_when_it_is_over(book, path):
    for name in names(3):
        book.place(name)
    size = path.stat().st_size
    with files_of_at_most(size + 10):
        for name in names(6)[3:]:
            book.place(name)
    assert book.journal.failures == 3
    assert path.stat().st_size == size + 10
    (told,) = book.told
    assert str(path) in told
    assert not path.with_name('placements.jsonl.new').exists()
    book.place('ep_42')
    assert book.journal.failures == 3
    assert len(lines_of(path)) == 1 + 7
    assert book.again().remembered == book.remembered


def test_a_router_that_ends_with_a_full_disk_leaves_a_torn_line(book, path):
    for name in names(3):
        book.place(name)
    with files_of_at_most(path.stat().st_size + 10):
        book.place('ep_42')
    again = book.again()
    assert list(again.remembered) == names(3)
    assert 'torn' in again.told[0]


def test_each_stretch_of_failures_is_told(book):
    for _ in range(2):
        with files_of_at_most(10):
            book.place('one')
            book.place('two')
        book.place('three')
    assert book.journal.failures == 4
    assert len(book.told) == 2


def test_a_disk_without_space_for_a_new_file(monkeypatch, book, path):
    monkeypatch.setattr(module, 'FEW_LINES', 10)
    beside = path.with_name('placements.jsonl.new')
    for number in range(300):
        if number == 150:
            beside.symlink_to('/dev/full')
        book.place(f'episode {number}')
    assert book.journal.failures == 1
    assert 'No space left on device' in book.told[0]
    assert book.again().remembered == book.remembered


def test_a_link_stays_a_link(path, tmp_path):
    path.parent.mkdir()
    path.symlink_to(tmp_path / 'elsewhere.jsonl')
    book = Book(path)
    book.place('ep_42')
    assert list(book.again().remembered) == ['ep_42']
    assert path.is_symlink()
    assert (tmp_path / 'elsewhere.jsonl').is_file()


def test_what_is_no_file_is_left_alone(path, tmp_path):
    path.parent.mkdir()
    os.mkfifo(tmp_path / 'pipe')
    # no device: one that was replaced would be gone for the whole machine
    for target in (tmp_path / 'pipe', tmp_path):
        before = os.stat(target)
        path.symlink_to(target)
        book = Book(path)
        for name in names(3):
            book.place(name)
        assert book.journal.failures == 4
        assert book.told == [book.told[0]]
        assert 'no regular file' in book.told[0]
        assert os.stat(target).st_ino == before.st_ino
        book.journal.close()
        path.unlink()


def test_a_folder_that_goes_and_comes_back(book, path, tmp_path):
    book.place('one')
    path.parent.rename(tmp_path / 'away')
    for file in (tmp_path / 'away').iterdir():
        file.unlink()
    for name in names(3):
        book.place(name)
    assert book.journal.failures == 3
    (told,) = book.told
    assert 'No such file or directory' in told
    path.parent.mkdir()
    book.place('two')
    assert book.journal.failures == 3
    # it is ours again, too
    with pytest.raises(JournalInUse):
        Journal(path, CAPACITY, pytest.fail)
    assert list(book.again().remembered) == ['one', *names(3), 'two']


def test_a_folder_that_another_router_took_meanwhile_is_left_to_it(book, path):
    for file in path.parent.iterdir():
        file.unlink()
    other = Book(path)
    book.place('one')
    other.place('two')
    assert book.journal.failures == 1
    assert 'in use' in book.told[0]
    assert list(other.again().remembered) == ['two']


def test_a_file_that_somebody_removed_is_written_anew(book, path):
    for name in names(3):
        book.place(name)
    path.unlink()
    book.place('ep_42')
    assert (book.journal.failures, book.told) == (0, [])
    assert book.again().remembered == book.remembered


def test_a_folder_that_cannot_be_made_costs_only_the_memory(tmp_path):
    (tmp_path / 'state').write_text('a file')
    book = Book(tmp_path / 'state' / 'placements.jsonl')
    book.place('ep_42')
    assert book.journal.failures == 3
    assert len(book.told) == 1


@settings(max_examples=60, deadline=None)
@given(script=st.lists(st.sampled_from(['whole', 'whole', 'whole', 'part', 'nothing'])))
def test_whatever_fails_all_is_there_when_it_works_again(tmp_path_factory, script):
    book = Book(tmp_path_factory.mktemp('failing') / 'placements.jsonl')

    def write(file, data):
        os.write(file, data[: {'whole': len(data), 'part': len(data) // 2}.get(how, 0)])
        if how != 'whole':
            raise OSError('disk')

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, 'FEW_LINES', 3)
        patch.setattr(module, 'COPIED_AT_ONCE', 2)
        for number, how in enumerate(script):
            patch.setattr(module, 'write', write)
            book.place(f'episode {number % 9}', 'ab'[number % 2])
            held, _ = read(book.path, CAPACITY)
            assert how != 'whole' or not set(book.remembered.items()) - set(held.items())
    assert book.journal.failures == len([how for how in script if how != 'whole'])
    book.place('ep_42')
    again = book.again()
    assert again.remembered == book.remembered
    assert again.told == []
    again.journal.close()
