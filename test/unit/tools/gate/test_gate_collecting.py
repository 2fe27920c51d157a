# SPDX-License-Identifier: Apache-2.0
"""Both policies on the recorded requests: which ones count, once, and for whom."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from support.tools.bag_rig import write
from support.tools.replay_rig import (
    answered,
    as_messages,
    episodes,
    OTHER_SHAPE,
    parameters,
    SHAPE,
)

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.schema import Status
from lerobot_serve.tools.gate.collecting import Collector, recorded_parent
from lerobot_serve.tools.gate.figures import GateFigures
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
