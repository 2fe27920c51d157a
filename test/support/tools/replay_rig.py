# SPDX-License-Identifier: Apache-2.0
"""Recordings of a policy, made without ROS by serving it as a policy server does."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.schema import Flag, MsgType
from lerobot_serve.parameters import build_parameters
from lerobot_serve.server.parameters import ServerParameters
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION
from lerobot_serve.tools.replay.engine import MatchLevel, Replay, ReplayResult
from lerobot_serve.tools.replay.in_process_server import InProcessServer
from lerobot_serve.tools.replay.sources import open_source
from support.tools.bag_rig import write

OTHER_SHAPE = 'joints=3,chunk=7,cameras=,fps=30'

SHAPE = 'joints=3,chunk=5,cameras=,fps=30'
INBOX, REPLIES = '/policy_server/observation', '/robot_1/action_chunk'


def parameters(kind: str = 'null', path: str = SHAPE, **more: object) -> ServerParameters:
    given = {'policy_kind': kind, 'policy_path': path, 'max_sessions': 100}
    return build_parameters(ServerParameters, given | more)


def request(
    seq: int,
    *,
    client: str = 'robot_1',
    episode: int = 0,
    start: bool = False,
    epoch: int = 1,
    joints: int = 3,
) -> bytes:
    """Return a request that no other one is like."""
    flags = Flag.EPISODE_START if start else Flag.NONE
    header = Header(seq, seq, epoch, episode, 1, MsgType.OBSERVATION, flags)
    state = np.resize(np.float32([seq, episode, len(client)]), (1, joints)) / 7
    return wire_observation.encode(Observation(header, client, f'episode_{episode}', state))


def episodes(count: int, length: int = 4, **more: object) -> list[bytes]:
    """Return the requests of so many episodes of one robot."""
    return [
        request(1 + number * length + i, episode=number, start=i == 0, **more)
        for number in range(count)
        for i in range(length)
    ]


def answered(
    requests: Sequence[bytes], kind: str = 'null', path: str = SHAPE, **more: object
) -> list[tuple[bytes, bytes]]:
    """Return the requests with the answers of a server."""
    server = InProcessServer(parameters(kind, path, **more))
    pairs = [(raw, wire_chunk.encode(server.reply_to(raw, {}))) for raw in requests]
    server.close()
    return pairs


def as_messages(pairs: Iterable[tuple[bytes, bytes]]) -> list[BagMessage]:
    """Return what a recorder hears of it; an answer that is empty was never sent."""
    messages = []
    for number, (asked, answer) in enumerate(pairs):
        messages.append(BagMessage(INBOX, OBSERVATION, 1000 + 2 * number, asked))
        if answer:
            messages.append(BagMessage(REPLIES, CHUNK, 1001 + 2 * number, answer))
    return messages


def record(folder: Path, pairs: Iterable[tuple[bytes, bytes]]) -> Path:
    return write(folder / 'bag', as_messages(pairs), every=5)


def replay(path: Path, kind: str = 'null', shape: str = SHAPE, **more: object) -> ReplayResult:
    replayer = InProcessServer(parameters(kind, shape))
    try:
        return Replay(open_source(path), replayer, **more).run()
    finally:
        replayer.close()


def counts(result) -> tuple[int, ...]:
    """Return how many replies are identical, within, beyond and missing."""
    return tuple(result.count(level) for level in MatchLevel)
