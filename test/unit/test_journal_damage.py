"""The journal of placements: whatever lies in its file, it loads."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from journal_rig import Book, CAPACITY, decided, lines_of, names
import pytest

from lerobot_serve.router.decisions import head, LINE_LIMIT, NotOurs, read, to_line


@pytest.fixture
def path(tmp_path):
    return tmp_path / 'state' / 'placements.jsonl'


@pytest.mark.parametrize(
    'line',
    [
        b'nonsense',
        b'[]',
        b'{}',
        b'\xff\xfe',
        b'\0\0\0',
        b'[' * 5000,
        b'{"a":' * 2000,
        b'x' * 3 * LINE_LIMIT,
        b'{"episode":"ep_42","bucket":28,"slot":"a","split_percent":30}',
        b'{"episode":"ep_42","bucket":29,"slot":"c","split_percent":30}',
        b'{"episode":"ep_42","bucket":29,"slot":["a"],"split_percent":30}',
        b'{"episode":"ep_42","bucket":29,"slot":"a","split_percent":101}',
        b'{"episode":"ep_42","bucket":29,"slot":"a","split_percent":-1}',
        b'{"episode":"ep_42","bucket":29,"slot":"a","split_percent":true}',
        b'{"episode":"ep_42","bucket":29,"slot":"a","split_percent":NaN}',
        b'{"episode":"ep_42","bucket":29,"slot":"a","split_percent":30,"moved":1}',
        b'{"episode":"ep_42","bucket":29,"slot":"a","split_percent":30,"reason":[]}',
        b'{"episode":"","bucket":20,"slot":"a","split_percent":30}',
        b'{"episode":42,"bucket":29,"slot":"a","split_percent":30}',
        b'{"episode":"\\ud800","bucket":29,"slot":"a","split_percent":30}',
    ],
    ids=lambda line: repr(line[:80]),
)
def test_a_line_that_makes_no_sense_is_skipped_and_told_once(path, line):
    path.parent.mkdir()
    intact = [to_line(name, decided(name)) for name in names(2)]
    path.write_bytes(head() + intact[0] + line + b'\n' + intact[1])
    book = Book(path)
    assert list(book.remembered) == names(2)
    (told,) = book.told
    assert str(path) in told
    assert 'make no sense were skipped: ' in told
    assert 'torn' not in told
    assert book.again().told == []


def test_skipped_and_torn_lines_are_told_together(path):
    path.parent.mkdir()
    line = to_line('ep_42', decided('ep_42'))
    path.write_bytes(head() + b'one\ntwo\n' + line + line[:-5])
    book = Book(path)
    assert list(book.remembered) == ['ep_42']
    (told,) = book.told
    assert 'were skipped: 2' in told
    assert 'torn last line was cut off' in told
    assert lines_of(path) == [head().rstrip(), line.rstrip()]


def test_a_damaged_first_line_costs_no_other(path):
    path.parent.mkdir()
    path.write_bytes(b'x' + head() + to_line('ep_42', decided('ep_42')))
    book = Book(path)
    assert list(book.remembered) == ['ep_42']
    assert 'were skipped: 1' in book.told[0]
    assert lines_of(path)[0] == head().rstrip()


def test_what_a_later_router_may_add_is_ignored(path):
    path.parent.mkdir()
    line = b'{"episode":"ep_42","bucket":29,"slot":"a","split_percent":30,"more":[1]}\n'
    path.write_bytes(head() + line)
    book = Book(path)
    assert book.remembered == {'ep_42': decided('ep_42', split_percent=30)}
    assert book.told == []


def test_a_reason_without_utf_8_can_be_written_again(path):
    path.parent.mkdir()
    line = to_line('ep_42', decided('ep_42', reason='x')).replace(b'"x"', b'"\\ud800"')
    path.write_bytes(head() + line)
    book = Book(path)
    assert list(book.remembered) == list(book.again().remembered) == ['ep_42']


def example() -> list[bytes]:
    """The lines of a file: names that no damage turns into each other."""
    slots = 'ab'
    return [head()] + [
        to_line(c * 8, decided(c * 8, slots[n % 2], reason='ü' * (n % 3)))
        for n, c in enumerate('abcdefgh')
    ]


EXAMPLE = b''.join(example())


def survivors(damaged: bytes, first: int, folder: Path) -> None:
    """Assert that each line which ends before byte `first` is remembered, and nothing raises."""
    path = folder / 'placements.jsonl'
    path.write_bytes(damaged)
    book = Book(path)
    intact, end = [], 0
    for line in example():
        end += len(line)
        if end <= first and b'episode' in line:
            intact.append(json.loads(line)['episode'])
    assert list(book.remembered)[: len(intact)] == intact
    for number, name in enumerate(intact):
        assert book.remembered[name].slot == 'ab'[number % 2]
    assert book.journal.failures == 0
    # mended: the second time there is nothing to tell, and it can be added to
    book.place('ep_42')
    again = book.again()
    assert again.remembered == book.remembered
    assert again.told == []
    again.journal.close()


@settings(max_examples=80, deadline=None)
@given(length=st.integers(0, len(EXAMPLE)))
def test_a_file_that_was_cut_keeps_its_whole_lines(tmp_path_factory, length):
    survivors(EXAMPLE[:length], length, tmp_path_factory.mktemp('cut'))


@settings(max_examples=150, deadline=None)
@given(
    first=st.integers(0, len(EXAMPLE)), removed=st.integers(0, 60), garbage=st.binary(max_size=60)
)
def test_a_file_with_garbage_keeps_the_lines_before_it(tmp_path_factory, first, removed, garbage):
    damaged = EXAMPLE[:first] + garbage + EXAMPLE[first + removed :]
    survivors(damaged, first, tmp_path_factory.mktemp('garbage'))


@settings(max_examples=150, deadline=None)
@given(place=st.integers(0, len(EXAMPLE) - 1), bit=st.integers(0, 7))
def test_a_flipped_bit_costs_two_lines_at_most(tmp_path_factory, place, bit):
    flipped = bytearray(EXAMPLE)
    flipped[place] ^= 1 << bit
    folder = tmp_path_factory.mktemp('flipped')
    survivors(bytes(flipped), place, folder)
    with contextlib.suppress(NotOurs):
        (folder / 'flipped').write_bytes(flipped)
        assert len(read(folder / 'flipped', CAPACITY)[0]) >= 6


@settings(max_examples=100, deadline=None)
@given(content=st.binary(min_size=1))
def test_any_file_can_lie_there(tmp_path_factory, content):
    survivors(content, 0, tmp_path_factory.mktemp('any'))


# a file that is not ours


@pytest.mark.parametrize(
    ('content', 'what'),
    [
        (bytes(range(256)) * 300, 'is no file of placements'),
        (b'{"state": "rolled_back"}\n', 'is no file of placements'),
        (b'a,b\n1,2\n', 'is no file of placements'),
        (head()[:20], 'is no file of placements'),
        (head().replace(b'1', b'2') + b'{"later": true}\n', 'is of version 2 and not of 1'),
    ],
    ids=['binary', 'json', 'csv', 'torn_head', 'later_version'],
)
def test_a_foreign_file_is_set_aside_untouched(path, content, what):
    path.parent.mkdir()
    for number in (1, 2):
        path.write_bytes(content)
        book = Book(path)
        assert book.remembered == {}
        aside = path.with_name(f'placements.jsonl.broken-{number}')
        assert aside.read_bytes() == content
        (told,) = book.told
        assert f'{path} {what}' in told
        assert aside.name in told
        book.place('ep_42')
        again = book.again()
        assert (list(again.remembered), again.told) == (['ep_42'], [])
        again.journal.close()


def test_an_empty_file_is_a_new_one(path):
    path.parent.mkdir()
    path.touch()
    book = Book(path)
    book.place('ep_42')
    assert book.told == []
    assert list(book.again().remembered) == ['ep_42']
