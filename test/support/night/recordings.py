# SPDX-License-Identifier: Apache-2.0
"""
The recorder of a night: a small bag for an episode, with its requests, replies and outcome, as
`lerobot-serve gate` reads it, and its announcement. One thread.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
import random

import numpy as np

from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.data_path.header import Header
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.records import RecordedEpisode
from lerobot_serve.contract.schema import Flag, MsgType
from lerobot_serve.contract.types import Time
from lerobot_serve.experience.recorded_episode import OUTCOMES
from lerobot_serve.tools.bags.message import BagMessage, CHUNK, OBSERVATION, OUTCOME
from support.night.clock import NightClock, SECOND_NS
from support.night.robots import EndedEpisode
from support.tools.bag_rig import write_sqlite
from support.tools.recorder_rig import outcome as outcome_message

HOST = 'here'
JOINTS, PIXELS, REQUESTS, STEPS, BY_PERSON = 6, 64, 2, 30, 6
CAMERAS = ('observation.images.front', 'observation.images.wrist')
ROWS = np.zeros((2, JOINTS), np.float32)
# the recorder announces these again to a learner that starts
ANNOUNCED = 1000
# every so many episodes a person corrects the robot, and the recorder keeps it
EVERY = 6


class Recorder:
    """See the module. `announced` are all episodes, oldest first."""

    def __init__(self, folder: Path, clock: NightClock, chance: random.Random) -> None:
        self.folder, self._clock, self._chance = folder, clock, chance
        self.announced: list[RecordedEpisode] = []
        self._ended = 0
        folder.mkdir(parents=True)

    def take(self, ended: EndedEpisode) -> RecordedEpisode | None:
        """Keep every EVERYth episode; return its announcement."""
        self._ended += 1
        if self._ended % EVERY:
            return None
        bag = self.folder / ended.episode_id
        bag.mkdir()
        file = write_sqlite(bag / f'{bag.name}_0.db3', self._messages(ended))
        (bag / 'metadata.yaml').touch()
        stamp_s = self._clock.wall_s()
        os.utime(bag / 'metadata.yaml', (stamp_s, stamp_s))
        episode = RecordedEpisode(
            stamp=Time(int(stamp_s)),
            client_id=ended.client_id,
            episode_id=ended.episode_id,
            outcome=RecordedEpisode.Outcome(ended.outcome),
            control_steps=STEPS,
            control_steps_person=BY_PERSON,
            policies=ended.policies,
            host=HOST,
            path=str(bag),
            size_bytes=file.stat().st_size,
            sha256=hashlib.sha256(file.read_bytes()).hexdigest(),
        )
        self.announced.append(episode)
        return episode

    def _messages(self, ended: EndedEpisode) -> list[BagMessage]:
        stamp_ns = int(self._clock.wall_s() * 1e9)
        found: list[BagMessage] = []
        for seq in range(1, REQUESTS + 1):
            asked, answer = self._exchange(ended, seq)
            found.append(BagMessage('/policy_router/observation', OBSERVATION, stamp_ns, asked))
            found.append(BagMessage(f'/{ended.client_id}/chunk', CHUNK, stamp_ns + 1, answer))
            stamp_ns += SECOND_NS
        raw = outcome_message(ended.episode_id, OUTCOMES[ended.outcome])
        found.append(BagMessage('/judge/episode_outcome', OUTCOME, stamp_ns, raw))
        return found

    def _exchange(self, ended: EndedEpisode, seq: int) -> tuple[bytes, bytes]:
        flags = Flag.EPISODE_START if seq == 1 else Flag.NONE
        header = Header(seq, 0, 1, 1, 1, MsgType.OBSERVATION, flags)
        draw = np.random.default_rng(self._chance.getrandbits(32))
        pictures = tuple(
            Image(name, PIXELS, PIXELS, draw.integers(0, 256, (PIXELS, PIXELS, 3), np.uint8))
            for name in CAMERAS
        )
        state = draw.uniform(-0.5, 0.5, (1, JOINTS)).astype(np.float32)
        asked = Observation(header, ended.client_id, ended.episode_id, state, pictures)
        policy = ended.policies[-1 if seq > 1 else 0]
        answer = Chunk(
            header.for_reply(0),
            ended.client_id,
            ended.episode_id,
            robot=ROWS,
            model=ROWS,
            policy=policy,
        )
        return wire_observation.encode(asked), wire_chunk.encode(answer)
