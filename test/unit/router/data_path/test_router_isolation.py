# SPDX-License-Identifier: Apache-2.0
"""One bad slot never degrades the other: robots in slot a see no difference."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from support.router.dispatch_rig import episode_in, MS, Rig, SECOND, SLOTS, TIMEOUT_NS

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.schema import Status

ROBOTS = [f'robot-{number}' for number in range(6)]
ROUNDS = 60
# what slot b does with a request: the status of its answer, if there is one
TROUBLES = {
    'silence': None,
    'nan': Status.NOT_FINITE,
    'errors': Status.POLICY_ERROR,
    'no sessions': Status.NO_SESSION,
    'leaving': Status.DRAINING,
    'bad observations': Status.BAD_OBSERVATION,
    'too late': Status.TOO_LATE,
    'nonsense': b'\x00\x01\x00\x00',
    'another policy': 'other@1',
    'another status': 77,
    'away': 'away',
    'every answer three times': 'thrice',
}


@dataclass
class Seen:
    """What became of slot a."""

    sent: list[tuple[str, str, int]]
    replies: list[tuple[str, int, int, int]]
    facts: tuple


def run(trouble: object) -> Seen:
    """Half of the robots in each slot; now and then one of robot-0 is lost."""
    rig = Rig()
    sent, replies = [], []
    for name in ROBOTS:
        rig.robot(name)
    for number in range(ROUNDS):
        for server in SLOTS['b']:
            rig.set_available(server, trouble != 'away' or number == 0)
        for index, name in enumerate(ROBOTS):
            rig.request(name, episode_in('ab'[index % 2], salt=index))
        rig.advance(10 * MS)
        sent += answer_all(rig, trouble, loses=number % 10 == 9)
        rig.advance(40 * MS)
        sent += answer_all(rig, trouble)
        replies += [(*told(raw), number) for _, raw in rig.outside.replies]
        rig.outside.replies.clear()
    in_a = set(ROBOTS[::2])
    return Seen(
        [each for each in sent if each[0] in SLOTS['a'] and each[1] in in_a],
        [each for each in replies if each[0] in in_a],
        facts(rig),
    )


def answer_all(rig: Rig, trouble: object, *, loses: bool = False) -> list[tuple[str, str, int]]:
    """Return who was sent what; slot a answers, slot b has its trouble."""
    requests = list(rig.outside.sent)
    rig.outside.sent.clear()
    for server, raw in requests:
        if server in SLOTS['b']:
            make_trouble(rig, server, raw, trouble)
        elif not (loses and read_envelope(raw).client_id == ROBOTS[0]):
            rig.answer(server, raw)
    starts = [(server, read_envelope(raw)) for server, raw in requests]
    return [(server, start.client_id, start.header.seq) for server, start in starts]


def make_trouble(rig: Rig, server: str, raw: bytes, trouble: object) -> None:
    if isinstance(trouble, bytes):
        rig.dispatcher.on_reply(server, trouble, rig.now_ns)
    elif trouble == 'thrice':
        for _ in range(3):
            rig.answer(server, raw)
    elif isinstance(trouble, str):
        rig.answer(server, raw, policy=trouble)
    elif trouble is not None:
        rig.answer(server, raw, trouble)


def told(raw: bytes) -> tuple[str, int, int]:
    chunk = wire_chunk.decode(raw)
    return chunk.client_id, chunk.header.seq, chunk.header.flags


def facts(rig: Rig) -> tuple:
    """What is held for and against slot a."""
    slot, stats = rig.slots['a'], rig.stats.slot('a')
    replicas = [(r.health.state, r.health.failures, r.counts['failures']) for r in slot]
    return slot.health.state, slot.health.failures, dict(stats.failed), stats.moved, replicas


@pytest.fixture(scope='module')
def without_trouble() -> Seen:
    seen = run(Status.OK)
    assert len(seen.replies) == ROUNDS * len(ROBOTS) // 2
    assert len(seen.sent) > len(seen.replies), 'no hedge in slot a'
    return seen


@pytest.mark.parametrize('trouble', TROUBLES.values(), ids=TROUBLES)
def test_robots_in_slot_a_see_nothing_of_the_trouble_in_slot_b(without_trouble, trouble):
    assert run(trouble) == without_trouble


@pytest.mark.parametrize('trouble', [None, Status.NOT_FINITE, Status.POLICY_ERROR])
def test_robots_of_the_bad_slot_end_up_in_the_good_one(trouble):
    rig = Rig(robot='robot')
    episode = episode_in('b')
    for _ in range(20):
        raw = rig.request(episode=episode)
        rig.advance(TIMEOUT_NS // 4)
        for server, sent in tuple(rig.outside.sent):
            if server in SLOTS['a']:
                rig.answer(server, sent)
            elif trouble is not None and sent is raw:
                rig.answer(server, sent, trouble)
        rig.outside.sent.clear()
        rig.advance(3 * SECOND)
    assert rig.robots.current('robot').slot == 'a'
    assert rig.stats.slot('b').moved == 1
