# SPDX-License-Identifier: Apache-2.0
"""
Episodes are found in folders of recorders, and nothing that is none. Values of other types are in
test/golden/refusals.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
import shutil
import socket

from hypothesis import given
from hypothesis import strategies as st
import pytest
from support.tools.episode_bags import (
    complete_at,
    file_of,
    sha256sum,
    whole_episodes,
)
from support.tools.recorder_rig import RecorderRig

from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.contract.types import Time
from lerobot_serve.experience.bag_files import INTERVALS_FILE, NotAnEpisode
from lerobot_serve.experience.recorded_episode import INTERVALS_LIMIT_BYTES, read_summary
from lerobot_serve.experience.scanning import episodes_in, HASH_FILE, read_hash, write_note


@pytest.fixture
def bag(tmp_path) -> Path:
    (made,) = whole_episodes(tmp_path, 'ep')
    return made


def change(bag: Path, **values: object) -> None:
    """Let intervals.json say something else; a value of `...` removes the key."""
    file = bag / INTERVALS_FILE
    content = {**json.loads(file.read_text()), **values}
    file.write_text(json.dumps({k: v for k, v in content.items() if v is not ...}))


def scanned(root: Path) -> tuple[list, dict[str, str]]:
    skipped: dict[str, str] = {}
    found = list(episodes_in(root, lambda folder, why: skipped.update({folder.name: why})))
    return found, skipped


def test_an_episode_is_found_with_all_that_is_announced(tmp_path):
    recording = RecorderRig(tmp_path)
    recording.run('ep', 3)
    recording.run('ep', 2, source='person', policy='')
    recording.run('ep', 1, policy='q@2')
    recording.judge('ep', 'failure')
    recording.report('')
    recording.wait(3.0)
    recording.stop()
    ((episode,), skipped) = scanned(tmp_path)
    (bag,) = (each for each in tmp_path.iterdir() if each.is_dir())
    complete_at(bag, 1_234_567_890)
    ((episode,), skipped) = scanned(tmp_path)
    assert not skipped
    assert (episode.client_id, episode.episode_id) == ('arm_1', 'ep')
    assert episode.outcome is RecordedEpisode.Outcome.FAILURE
    assert (episode.control_steps, episode.control_steps_person) == (6, 2)
    assert episode.policies == ('p@1', 'q@2')
    assert (episode.host, episode.path) == (socket.gethostname(), str(bag))
    assert (episode.sha256, episode.size_bytes) == (sha256sum(bag), file_of(bag).stat().st_size)
    assert episode.stamp == Time(1_234_567_890)
    # the folder of others is only read
    assert not list(tmp_path.rglob(HASH_FILE))


def test_the_oldest_comes_first_whatever_its_name(tmp_path):
    made = whole_episodes(tmp_path, 'c', 'a', 'b')
    assert [each.episode_id for each in episodes_in(tmp_path)] == ['c', 'a', 'b']
    complete_at(made[0], 2_000_000_000)
    assert [each.episode_id for each in episodes_in(tmp_path)] == ['a', 'b', 'c']


def test_a_note_saves_reading_the_bag(bag, monkeypatch):
    note = read_hash(file_of(bag))
    write_note(bag, note)

    def forbidden(*_: object) -> None:
        raise AssertionError('the bag is read')

    monkeypatch.setattr('lerobot_serve.experience.scanning.hash_of', forbidden)
    ((episode,), _) = scanned(bag.parent)
    assert episode.sha256 == note.sha256
    os.utime(file_of(bag), (1, 1))
    with pytest.raises(AssertionError, match='the bag is read'):
        scanned(bag.parent)


def test_a_bag_that_is_not_whole_is_no_episode(tmp_path):
    recording = RecorderRig(tmp_path)
    recording.record('whole')
    recording.begin('runs')
    assert [[each.episode_id for each in scanned(tmp_path)[0]], scanned(tmp_path)[1]] == [
        ['whole'],
        {},
    ]
    recording.kill()
    assert [each.episode_id for each in episodes_in(tmp_path)] == ['whole']
    # the next recorder completes it
    RecorderRig(tmp_path).stop()
    found, skipped = scanned(tmp_path)
    assert ({each.episode_id for each in found}, skipped) == ({'whole', 'runs'}, {})


def test_an_episode_without_an_outcome_has_none(tmp_path):
    recording = RecorderRig(tmp_path)
    recording.record('ep', outcome='')
    recording.stop()
    assert [each.outcome for each in episodes_in(tmp_path)] == [0]


def test_an_outcome_that_no_episode_has_is_none(bag):
    change(bag, outcome='7')
    assert [each.outcome for each in episodes_in(bag.parent)] == [0]


UNCOUNTED = {'control_steps': ..., 'control_steps_person': ...}


def test_intervals_of_an_older_recorder_are_counted(bag):
    change(
        bag,
        control_steps=...,
        control_steps_person=...,
        policies=...,
        intervals=[
            {'source': 'policy', 'first_step': 6, 'last_step': 9},
            {'source': 'person', 'first_step': 10, 'last_step': 12},
        ],
    )
    ((episode,), _) = scanned(bag.parent)
    assert (episode.control_steps, episode.control_steps_person) == (7, 3)
    assert episode.policies == ()


@pytest.mark.parametrize(
    ('values', 'text'),
    [
        ({'robot': ...}, 'robot is missing; it must be a text'),
        ({'robot': 'x' * 200}, 'has 200 bytes, at most 128 are allowed'),
        ({'robot': '\ud800'}, 'has a lone surrogate'),
        ({'episode_id': 'a\0b'}, 'contains a NUL character'),
        ({'control_steps': float('inf')}, 'Infinity is not a finite number'),
        ({'control_steps': -1}, 'control_steps must be in'),
        ({'control_steps': 1 << 32}, 'control_steps must be in'),
        ({'control_steps': 10**4000}, 'control_steps must be in'),
        ({'control_steps_person': 6}, 'control_steps_person must be in'),
        ({'policies': ['p'] * 17}, 'policies: 17 entries, at most 16 are allowed'),
        (
            {**UNCOUNTED, 'intervals': [{'source': 'x', 'first_step': 9, 'last_step': 1}]},
            'control_steps must be in',
        ),
        ({**UNCOUNTED, 'intervals': ...}, 'control_steps or intervals is missing'),
    ],
)
def test_intervals_with_other_values_are_refused(bag, values, text):
    change(bag, **values)
    found, skipped = scanned(bag.parent)
    assert not found
    assert text in skipped[bag.name]


@pytest.mark.parametrize(
    ('content', 'text'),
    [
        (b'', 'intervals.json cannot be read'),
        (b'[]', 'intervals.json is not a JSON object'),
        (b'\xff\xfe', 'intervals.json cannot be read'),
        (b'[' * 1_000_000, 'intervals.json cannot be read'),
        (b'{"a":' + b'9' * 5000 + b'}', 'intervals.json cannot be read'),
        (b' ' * (INTERVALS_LIMIT_BYTES + 1), 'it has more than 8388608 bytes'),
    ],
)
def test_intervals_that_are_no_json_are_refused(bag, content, text):
    (bag / INTERVALS_FILE).write_bytes(content)
    found, skipped = scanned(bag.parent)
    assert not found
    assert text in skipped[bag.name]


def cut_end(bag: Path) -> None:
    file = file_of(bag)
    file.write_bytes(file.read_bytes()[:-1])


def empty(bag: Path) -> None:
    file_of(bag).write_bytes(b'')


def other_format(bag: Path) -> None:
    file_of(bag).write_bytes(b'SQLite format 3\0' * 10)


def two_files(bag: Path) -> None:
    shutil.copy(file_of(bag), bag / 'more.mcap')


def no_file(bag: Path) -> None:
    file_of(bag).unlink()


def linked_file(bag: Path) -> None:
    file = file_of(bag)
    file.rename(bag.parent / 'elsewhere')
    file.symlink_to(bag.parent / 'elsewhere')


def pipe(bag: Path) -> None:
    file = file_of(bag)
    file.unlink()
    os.mkfifo(file)


def linked_intervals(bag: Path) -> None:
    file = bag / INTERVALS_FILE
    file.rename(bag.parent / 'elsewhere')
    file.symlink_to(bag.parent / 'elsewhere')


def linked_folder(bag: Path) -> None:
    whole = bag.rename(bag.parent.parent / 'whole')
    bag.symlink_to(whole)


def no_metadata(bag: Path) -> None:
    (bag / 'metadata.yaml').unlink()


def no_intervals(bag: Path) -> None:
    (bag / INTERVALS_FILE).unlink()


@pytest.mark.parametrize(
    ('damage', 'text'),
    [
        (cut_end, 'was cut'),
        (empty, 'is not an MCAP file'),
        (other_format, 'is not an MCAP file'),
        (two_files, 'it has 2, 2 of them regular'),
        (no_file, 'it has 0, 0 of them regular'),
        (linked_file, 'it has 1, 0 of them regular'),
        (pipe, 'it has 1, 0 of them regular'),
        (linked_intervals, 'it has no file intervals.json'),
        (linked_folder, 'it is a link'),
        (no_metadata, 'it has no file metadata.yaml'),
        (no_intervals, 'it has no file intervals.json'),
    ],
)
def test_a_damaged_or_foreign_folder_is_no_episode(tmp_path, damage, text):
    root = tmp_path / 'bags'
    _, bad = whole_episodes(root, 'good', 'bad')
    damage(bad)
    found, skipped = scanned(root)
    assert [each.episode_id for each in found] == ['good']
    assert list(skipped) == [bad.name]
    assert text in skipped[bad.name]


def test_files_beside_bags_do_no_harm(bag):
    (bag.parent / 'notes.txt').write_text('x')
    os.mkfifo(bag.parent / 'pipe')
    assert scanned(bag.parent)[1] == {}


def test_a_bag_that_vanishes_while_others_are_read_is_skipped(tmp_path):
    first, second = whole_episodes(tmp_path, 'a', 'b')
    skipped: list[str] = []
    found = episodes_in(tmp_path, lambda folder, why: skipped.append(f'{folder.name}: {why}'))
    assert next(found).path == str(first)
    shutil.rmtree(second)
    assert not list(found)
    assert skipped == [f'{second.name}: it has no file metadata.yaml']


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        list(episodes_in(tmp_path / 'none'))


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
KEYS = ('robot', 'episode_id', 'outcome', 'control_steps', 'control_steps_person', 'policies')


@given(st.dictionaries(st.sampled_from([*KEYS, 'intervals']), VALUES))
def test_any_values_are_a_summary_or_refused(tmp_path_factory, values):
    folder = tmp_path_factory.mktemp('bag')
    (folder / INTERVALS_FILE).write_text(json.dumps(values))
    try:
        summary = read_summary(folder)
    except NotAnEpisode:
        return
    assert type(summary.control_steps) is int
    assert all(type(each) is str for each in summary.policies)
