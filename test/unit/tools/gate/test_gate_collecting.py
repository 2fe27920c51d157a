# SPDX-License-Identifier: Apache-2.0
"""What a gate may count: both policies on the recorded requests, and how episodes ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.replacing import replace
from support.tools.bag_rig import write
from support.tools.replay_rig import (
    answered,
    as_messages,
    episodes,
    OTHER_SHAPE,
    parameters,
    SHAPE,
)

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.records import EpisodeOutcome
from lerobot_serve.contract.schema import Status
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION, OUTCOME
from lerobot_serve.tools.gate.collecting import Collector, recorded_parent
from lerobot_serve.tools.gate.figures import GateFigures, reaches_robot, RecordedEpisodes
from lerobot_serve.tools.replay.in_process_server import InProcessServer
from lerobot_serve.tools.replay.sources import ReplayError

PAIRS = answered(episodes(3, length=4))
FINGERPRINT = wire_chunk.decode(PAIRS[0][1]).policy


@contextmanager
def server(path: str = SHAPE) -> Iterator[InProcessServer]:
    found = InProcessServer(parameters(path=path))
    try:
        yield found
    finally:
        found.close()


def bag(folder: Path, pairs=PAIRS) -> Path:
    return write(folder, as_messages(pairs), every=5)


def collected(*bags: Path, parent: str = FINGERPRINT, runs_parent: bool = False) -> GateFigures:
    with server() as candidate, server() as second:
        collector = Collector(candidate, second if runs_parent else None, parent)
        return collector.run(bags)


def as_status(raw: bytes, status: Status) -> bytes:
    return wire_chunk.encode(replace(wire_chunk.decode(raw), status=status))


@pytest.mark.parametrize('runs_parent', [False, True])
def test_a_policy_is_like_itself(tmp_path, runs_parent):
    found = collected(bag(tmp_path / 'bag'), runs_parent=runs_parent)
    assert (found.episodes, found.requests, found.is_parent_run) == (3, 12, runs_parent)
    assert found.candidate.chunks == found.parent.chunks == 12
    assert found.overall.similarity == pytest.approx(1.0)
    assert found.notes == []


def test_the_same_recording_twice_has_no_more_episodes(tmp_path):
    """Distinct episodes are what a gate needs at least: a copy of a bag adds none."""
    once = collected(bag(tmp_path / 'a'))
    twice = collected(tmp_path / 'a', bag(tmp_path / 'b'))
    assert (once.episodes, twice.episodes) == (3, 3)
    assert (once.requests, twice.requests) == (12, 24)
    assert once.digest != twice.digest


def test_a_request_with_replies_of_two_policies_counts_once(tmp_path):
    others = [
        (raw, wire_chunk.encode(replace(wire_chunk.decode(reply), policy='shadow@99')))
        for raw, reply in PAIRS
    ]
    both = [message for pair in zip(PAIRS, others, strict=True) for message in as_messages(pair)]
    found = collected(write(tmp_path / 'bag', both, every=5), runs_parent=True)
    assert (found.requests, found.candidate.chunks) == (12, 12)


@pytest.mark.parametrize('status', [Status.NO_SLOT, Status.TOO_LATE, Status.DRAINING])
def test_a_reply_of_no_policy_does_not_count(tmp_path, status):
    pairs = [(raw, as_status(reply, status)) for raw, reply in PAIRS[:4]] + PAIRS[4:]
    found = collected(bag(tmp_path / 'bag', pairs))
    assert (found.episodes, found.requests) == (2, 8)


def test_only_replies_of_the_parent_stand_for_it(tmp_path):
    others = answered(episodes(2, length=2, epoch=9), path=OTHER_SHAPE)
    found = collected(bag(tmp_path / 'bag', [*PAIRS, *others]))
    assert (found.episodes, found.requests) == (3, 12)
    assert f'requests without a reply of {FINGERPRINT}: 4' in found.notes
    # one that is run needs no recorded reply
    again = collected(tmp_path / 'bag', runs_parent=True)
    assert (again.episodes, again.requests) == (3, 16)


def test_the_digest_is_that_of_the_requests_in_their_order(tmp_path):
    forward, again = collected(bag(tmp_path / 'a')), collected(bag(tmp_path / 'b'))
    other = collected(bag(tmp_path / 'c', PAIRS[:8]))
    assert forward.digest == again.digest != other.digest


def test_requests_that_no_policy_can_reply_to_blame_neither(tmp_path):
    chunks = [wire_chunk.decode(reply) for _, reply in PAIRS[:2]]
    replies = [replace(each, header=replace(each.header, session_epoch=5)) for each in chunks]
    requests = episodes(1, length=2, epoch=5, joints=2)
    wrong = zip(requests, map(wire_chunk.encode, replies), strict=True)
    found = collected(bag(tmp_path / 'bag', [*PAIRS, *wrong]), runs_parent=True)
    assert found.requests == 12
    assert 'requests that fit neither policy: 2' in found.notes


def test_the_parent_of_a_recording_is_the_policy_with_the_most_replies(tmp_path):
    others = answered(episodes(1, length=2, epoch=9), path=OTHER_SHAPE)
    path = bag(tmp_path / 'bag', [*PAIRS, *others])
    rare = wire_chunk.decode(others[0][1]).policy
    assert recorded_parent([path], 'new@11') == FINGERPRINT
    assert recorded_parent([path], FINGERPRINT) == rare
    with pytest.raises(ReplayError, match='name its parent: --parent DIR'):
        recorded_parent([bag(tmp_path / 'one')], FINGERPRINT)


NEW, OLD, OTHER = 'new@11', 'old@22', 'other@33'
ROBOT = '/robot_1/action_chunk'
RAW, REPLY = answered(episodes(1, length=1))[0]


def outcome(episode_id: str, word: str) -> BagMessage:
    number = EpisodeOutcome.Outcome.named(word) if word else EpisodeOutcome.Outcome(0)
    raw = encode(EpisodeOutcome(client_id='robot_1', episode_id=episode_id, outcome=number))
    return BagMessage('/robot_1/episode_outcome', OUTCOME, 0, raw)


def reply(
    episode_id: str, policy: str, *, topic: str = ROBOT, status: Status = Status.OK
) -> BagMessage:
    chunk = replace(wire_chunk.decode(REPLY), episode_id=episode_id, policy=policy, status=status)
    return BagMessage(topic, CHUNK, 0, wire_chunk.encode(chunk))


def counted(*messages: BagMessage) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return successes and failures of the candidate and of the parent."""
    recorded, figures = RecordedEpisodes(), GateFigures(NEW, OLD)
    for message in messages:
        recorded.add(message)
    recorded.count_into(figures)
    return figures.overall.candidate, figures.overall.parent


@pytest.mark.parametrize(
    ('word', 'pair'), [('success', (1, 0)), ('failure', (0, 1)), ('aborted', (0, 1)), ('', (0, 0))]
)
def test_an_outcome_counts_for_the_policy_that_drove(word, pair):
    assert counted(reply('e', NEW), outcome('e', word)) == (pair, (0, 0))
    # the digest decides, not the name; an outcome may be recorded first
    assert counted(outcome('e', word), reply('e', 'renamed@22')) == ((0, 0), pair)


@pytest.mark.parametrize(
    'messages',
    [
        [reply('e', NEW), reply('e', OLD)],
        [reply('e', OTHER)],
        [],
        [reply('f', NEW)],
        # no robot was driven by these
        [reply('e', NEW, status=Status.NO_SLOT)],
        [reply('e', NEW, topic='/policy_router/replies/b1')],
    ],
    ids=['moved', 'another policy', 'no reply', 'another episode', 'refused', 'of a shadow'],
)
def test_an_episode_that_neither_drove_alone_does_not_count(messages):
    assert counted(*messages, outcome('e', 'success')) == ((0, 0), (0, 0))


def test_copies_for_a_shadow_make_no_mixed_episode():
    shadow = reply('e', NEW, topic='/policy_router/replies/b1')
    assert counted(reply('e', OLD), shadow, outcome('e', 'failure')) == ((0, 0), (0, 1))
    assert reaches_robot('/policy_router/replies/callers')


def test_only_the_first_outcome_of_an_episode_counts():
    messages = [reply('e', NEW), outcome('e', 'failure'), outcome('e', 'success')]
    assert counted(*messages) == ((0, 1), (0, 0))
    # none is not an outcome
    assert counted(reply('e', NEW), outcome('e', ''), outcome('e', 'success')) == ((1, 0), (0, 0))


def test_outcomes_are_of_their_tasks():
    recorded, figures = RecordedEpisodes(), GateFigures(NEW, OLD)
    for name, task in (('e', 'pick'), ('e', 'place'), ('f', 'place')):
        recorded.add_task(name, task)
        recorded.add(reply(name, NEW))
        recorded.add(outcome(name, 'success'))
    recorded.count_into(figures)
    assert {name: task.candidate for name, task in figures.tasks.items()} == {
        'pick': (1, 0),
        'place': (1, 0),
    }


def test_what_cannot_be_read_is_counted_and_other_messages_are_left_alone():
    recorded = RecordedEpisodes()
    recorded.add(BagMessage(ROBOT, CHUNK, 0, REPLY[:20]))
    recorded.add(BagMessage(ROBOT, OUTCOME, 0, b'\x00\x01\x00\x00'))
    recorded.add(BagMessage('/policy_server/observation', OBSERVATION, 0, b'?'))
    assert (recorded.unreadable, recorded.policies, recorded.outcomes) == (2, {}, {})
