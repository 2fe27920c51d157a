# SPDX-License-Identifier: Apache-2.0
"""
Run both policies on the recorded requests, in this process. One thread.

The seeds are those of the recording, so that policies which draw noise draw the same. The parent
is run, too, if its folder is given; otherwise its recorded replies stand for it, and latencies are
not compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from lerobot_serve.arrays import Float32Array
from lerobot_serve.cage.limits import MotionLimits
from lerobot_serve.cage.limits_encoding import decode_limits, EXTENSION_KEY
from lerobot_serve.contract.data_path import chunk as wire_chunk
from lerobot_serve.contract.data_path import observation as wire_observation
from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.fingerprint import digest_of
from lerobot_serve.contract.records import OpenSessionRequest
from lerobot_serve.contract.schema import Status
from lerobot_serve.contract.services.session import extension_bytes
from lerobot_serve.edge.robot import file
from lerobot_serve.edge.robot.units import limits_for_policy
from lerobot_serve.errors import WrongCommandLine
from lerobot_serve.router.shadow.remote_cage import make_remote_cage, RemoteCage
from lerobot_serve.tools.bags.message import OPEN_SESSION, read_open_session
from lerobot_serve.tools.bags.reader import Bag, is_bag
from lerobot_serve.tools.gate.figures import GateFigures, RecordedEpisodes
from lerobot_serve.tools.gate.motion import NO_ROWS, shared_motion
from lerobot_serve.tools.replay.engine import lost_state, NOT_FROM_POLICY
from lerobot_serve.tools.replay.in_process_server import InProcessServer
from lerobot_serve.tools.replay.sources import open_source, ReplayError, ReplayRequest

Progress = Callable[[Iterator[ReplayRequest]], Iterator[ReplayRequest]]


class Collector:
    """Collects the figures of a gate; `parent` is None if its recorded replies stand for it."""

    def __init__(
        self,
        candidate: InProcessServer,
        parent: InProcessServer | None,
        parent_policy: str,
        cage: RemoteCage | None = None,
    ) -> None:
        """`cage` is that of robots whose limits are not in the recordings."""
        self._candidate, self._parent, self._cage = candidate, parent, cage
        self.figures = GateFigures(
            candidate.served.fingerprint, parent_policy, is_parent_run=parent is not None
        )
        self._episodes, self._digest = RecordedEpisodes(), sha256()
        self._cages: dict[tuple[str, int], RemoteCage] = {}
        self._seen: set[tuple[str, int, int]] = set()
        # of all recordings; see _episode_key
        self._begun: set[tuple[str | int, ...]] = set()
        self._recording = 0
        self._unreadable = self._without_parent = self._bad_requests = 0

    def run(self, recordings: Sequence[Path], on_progress: Progress = iter) -> GateFigures:
        """Return the figures. Raises BagError, IncidentError, TraceError, ReplayError."""
        for self._recording, path in enumerate(recordings):
            # sessions and requests of another recording may have the same names
            self._episodes, self._cages, self._seen = RecordedEpisodes(), {}, set()
            self._read_bag(path)
            source = open_source(path)
            for request in on_progress(source.read()):
                self._take(request)
            self._episodes.count_into(self.figures)
            self._unreadable += self._episodes.unreadable
            self.figures.notes += [f'{path.name}: {note}' for note in source.notes]
        return self._finish()

    def _read_bag(self, path: Path) -> None:
        """Read what only a bag has: limits of robots, which policy drove them, and outcomes."""
        if not (path.exists() and is_bag(path)):
            return
        for message in Bag(path).read():
            self._episodes.add(message)
            if message.type != OPEN_SESSION:
                continue
            try:
                opened = read_open_session(message.data)
                if opened and (cage := cage_of(opened)):
                    self._cages[opened.client_id, opened.session_epoch] = cage
            except (Malformed, ValueError):
                self._unreadable += 1

    def _take(self, request: ReplayRequest) -> None:
        try:
            observation = wire_observation.decode(request.request)
            recorded = wire_chunk.decode(request.reply)
        except Malformed:
            self._unreadable += 1
            return
        if recorded.status in NOT_FROM_POLICY:
            return
        task = observation.task or str(request.info.get('task') or '')
        self._episodes.add_task(observation.episode_id, task)
        header = observation.header
        session = observation.client_id, header.session_epoch
        if (*session, header.seq) in self._seen:
            # another policy has replied to it, too
            return
        is_of_parent = digest_of(recorded.policy) == digest_of(self.figures.parent_policy)
        if self._parent is None and not is_of_parent:
            self._without_parent += 1
            return
        self._seen.add((*session, header.seq))
        self._begun.add(self._episode_key(observation))
        self._digest.update(request.request)
        candidate = self._candidate.reply_to(
            request.request, request.info, state_lost=lost_state(recorded)
        )
        parent = recorded
        if self._parent:
            parent = self._parent.reply_to(
                request.request, request.info, state_lost=lost_state(recorded)
            )
        served = self._candidate.served
        # the values of both have the same names: positions
        is_position = served.state_names == served.action_names
        before = observation.state[-1:] if is_position else NO_ROWS
        self._add(task, self._cages.get(session, self._cage), before, candidate, parent)
        self._add_latencies(request, candidate, parent)

    def _episode_key(self, observation: wire_observation.Observation) -> tuple[str | int, ...]:
        """
        Return what no other episode has: one with an id may be in several sessions and recordings.
        """
        client_id, header = observation.client_id, observation.header
        if observation.episode_id:
            return client_id, observation.episode_id
        return self._recording, client_id, header.session_epoch, header.episode

    def _add(
        self,
        task: str,
        cage: RemoteCage | None,
        before: Float32Array,
        candidate: Chunk,
        parent: Chunk,
    ) -> None:
        figures = self.figures
        if candidate.status == parent.status == Status.BAD_OBSERVATION:
            # no policy could reply to it
            self._bad_requests += 1
            return
        figures.requests += 1
        figures.candidate.add(candidate, cage, before)
        figures.parent.add(parent, cage, before)
        if candidate.status == parent.status == Status.OK:
            motion = shared_motion(parent.robot, candidate.robot)
            if motion:
                figures.task(task).add(motion)

    def _add_latencies(self, request: ReplayRequest, candidate: Chunk, parent: Chunk) -> None:
        figures = self.figures
        for policy, reply in ((figures.candidate, candidate), (figures.parent, parent)):
            if reply.status == Status.OK:
                policy.latencies.add(reply.inference_ms, request.request, request.info)

    def _finish(self) -> GateFigures:
        figures = self.figures
        figures.episodes = len(self._begun)
        # without both policies latencies do not count
        if self._parent:
            figures.candidate.latencies.settle(self._candidate.inference_ms)
            figures.parent.latencies.settle(self._parent.inference_ms)
        figures.digest = self._digest.hexdigest()
        counted = (
            (self._unreadable, 'messages that cannot be read'),
            (self._bad_requests, 'requests that fit neither policy'),
            (self._without_parent, f'requests without a reply of {figures.parent_policy}'),
        )
        figures.notes += [f'{what}: {count}' for count, what in counted if count]
        return figures


def cage_of(opened: OpenSessionRequest) -> RemoteCage | None:
    """Return the limits of the cage of a robot, None without them. Raises ValueError."""
    limits = extension_bytes(opened.extensions, EXTENSION_KEY)
    if not limits:
        return None
    return make_remote_cage(decode_limits(limits), opened.action_names, opened.fps)


def cage_of_robot(path: Path | None, action_names: tuple[str, ...]) -> RemoteCage | None:
    """
    Return the cage of a robot file, with one control step per row; None without a file. Raises
    RobotFileError, and WrongCommandLine for a robot with other actions.
    """
    if path is None:
        return None
    robot = file.load(path)
    limits = limits_for_policy(robot.actions, robot.action_units)
    actions = [
        replace(limit, name=name) for limit, name in zip(limits, robot.action_names, strict=True)
    ]
    if robot.action_names != action_names:
        raise WrongCommandLine(
            f'{path} has the actions {list(robot.action_names)}, the policy {list(action_names)}; '
            'name the file of the robot that was recorded, or, for a policy without names, its '
            'actions in their order: --parameter action_names=NAME,NAME'
        )
    return RemoteCage(MotionLimits(tuple(actions), 1 / robot.fps))


def recorded_parent(recordings: Sequence[Path], candidate: str) -> str:
    """
    Return the policy with the most recorded replies beside the candidate. Raises BagError,
    IncidentError, TraceError, ReplayError.
    """
    counts: dict[str, int] = {}
    for path in recordings:
        for policy, count in open_source(path).policies().items():
            if digest_of(policy) != digest_of(candidate):
                counts[policy] = counts.get(policy, 0) + count
    if not counts:
        raise ReplayError(
            'the recordings hold no reply of another policy than the candidate; name its parent: '
            '--parent DIR'
        )
    return max(counts, key=lambda policy: counts[policy])
