# SPDX-License-Identifier: Apache-2.0
"""Which policy drove a recorded episode, and how it ended: what a gate may count."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.tools.replay_rig import answered, episodes

from lerobot_serve.contract.codec import encode
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.records import EpisodeOutcome
from lerobot_serve.contract.schema import Status
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION, OUTCOME
from lerobot_serve.tools.gate.figures import GateFigures, reaches_robot, RecordedEpisodes

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
