"""
The thread that opens the session and asks for chunks, one at a time.

It talks to the world through a `Link`, so that it can be tried without ROS. What it decides, step
by step: open the session; wait until little is left to play; take the observations; send; wait for
the answer; merge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
import math
import queue
import threading

import numpy as np

from lerobot_serve.edge.answers import check_actions, check_agreement, name_episode
from lerobot_serve.edge.history import History
from lerobot_serve.edge.inputs import NotReady
from lerobot_serve.edge.ledger import Dropped, Ledger, Pending
from lerobot_serve.edge.link import Link, Pace, Progress
from lerobot_serve.edge.queue import ActionQueue, Source
from lerobot_serve.wire import chunk as wire_chunk
from lerobot_serve.wire import observation as wire_observation
from lerobot_serve.wire.chunk import Chunk
from lerobot_serve.wire.content import Image
from lerobot_serve.wire.errors import Malformed, Unencodable
from lerobot_serve.wire.header import Header
from lerobot_serve.wire.observation import Observation
from lerobot_serve.wire.schema import Flag, MsgType, Status
from lerobot_serve.wire.session import Refused, Unreachable

BACKOFF_LIMIT_S = 10.0
INPUT_RETRY_S = 0.02
RECONNECT = (Status.NO_SESSION, Status.DRAINING)


class Requester:
    """
    `run` is the body of the thread; `on_chunk`, `reset` and `wake` are called by the executor's.
    """

    def __init__(
        self,
        link: Link,
        history: History,
        actions: ActionQueue,
        *,
        client_id: str,
        task: str,
        action_count: int,
        first_epoch: int,
        pace: Pace,
        clock: Callable[[], int],
    ) -> None:
        self._link, self.history, self._actions = link, history, actions
        self._client_id, self._task, self._columns = client_id, task, action_count
        self._clock = clock
        self.pace = pace
        self.progress = Progress()
        self.drops: Counter[str] = Counter()
        self._ledger = Ledger(first_epoch)
        self._schema_version = 0
        self._episodes = 0
        self._episode_start = True
        self._arrived: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._reset_wanted = threading.Event()
        self._name_episode()

    # called by other threads

    def on_chunk(self, raw: bytes) -> None:
        """Deposit an answer."""
        self._arrived.put((raw, self._clock()))

    def reset(self) -> None:
        """
        End the episode: what is left of it is not played. The thread begins the next one as soon
        as it gets to it.
        """
        self._reset_wanted.set()
        self._actions.clear()
        self._arrived.put(None)

    def close(self) -> None:
        """Let `run` return."""
        self._stop.set()
        self._arrived.put(None)

    # the thread

    def run(self) -> None:
        backoff_s = self.pace.backoff_s
        while not self._stop.is_set():
            if self._reset_wanted.is_set():
                self._begin_episode()
            elif self.progress.connected:
                self._step()
            elif self._connect():
                backoff_s = self.pace.backoff_s
            else:
                self._stop.wait(backoff_s)
                backoff_s = min(2 * backoff_s, BACKOFF_LIMIT_S)

    def _connect(self) -> bool:
        progress = self.progress
        self._ledger = Ledger((self._ledger.session_epoch + 1) % 2**32)
        try:
            agreement = self._link.open_session(self._ledger.session_epoch)
            check_agreement(agreement)
        except (Refused, Unreachable) as error:
            progress.refused = str(error)
            return False
        self._schema_version = agreement.schema_version
        self.history.require(agreement.observation_steps, agreement.observation_stride_steps)
        progress.refused, progress.connected, progress.ever_connected = '', True, True
        return True

    def _step(self) -> None:
        """Do the next thing; never blocks for longer than a request may take."""
        left_s = self._actions.rows_left * self.pace.step_s
        if left_s > self.pace.buffer_time_s:
            self._take(min(left_s - self.pace.buffer_time_s, 1.0))
            return
        pending = self._ask()
        if pending is None:
            self._take(INPUT_RETRY_S)
            return
        accepted = self.progress.chunks_accepted
        self._wait_for_answer(pending)
        if accepted == self.progress.chunks_accepted and not self._reset_wanted.is_set():
            # a server that refuses at once must not be asked as fast as it can refuse
            self._stop.wait(self.pace.step_s)

    def _ask(self) -> Pending | None:
        """Send an observation; None when there is none to send."""
        try:
            moments = self.history.take(self._clock())
            # what is played is as old as the present observation; the past ones are meant to be
            captured_ns = moments[-1].snapshot.captured_ns
            pending = self._send(captured_ns, *self._link.observe(moments))
        except NotReady as error:
            self.progress.waiting_for = str(error)
            return None
        except (Malformed, Unencodable) as error:
            self._ledger.give_up()
            self.drops[getattr(error, 'reason', 'unencodable')] += 1
            self.progress.waiting_for = str(error)
            return None
        self.progress.waiting_for = ''
        return pending

    def _begin_episode(self) -> None:
        self._reset_wanted.clear()
        self._actions.clear()
        self.history.restart()
        self._ledger.new_episode()
        self._episode_start = True
        self._name_episode()
        epoch, episode = self._ledger.session_epoch, self._ledger.episode
        if self.progress.connected:
            self._link.reset_episode(epoch, episode, self.progress.episode_id)

    def _name_episode(self) -> None:
        self._episodes += 1
        self.progress.episode_id = name_episode(
            self._client_id, self._ledger.session_epoch, self._episodes
        )

    def _send(self, captured_ns: int, state: np.ndarray, images: tuple[Image, ...]) -> Pending:
        now_ns = self._clock()
        pending = self._ledger.begin(
            sent_ns=now_ns, captured_ns=captured_ns, rows_taken=self._actions.rows_taken
        )
        header = Header(
            pending.seq,
            now_ns,
            self._ledger.session_epoch,
            self._ledger.episode,
            self._schema_version,
            MsgType.OBSERVATION,
            Flag.EPISODE_START if self._episode_start else Flag.NONE,
        )
        left_s = self._actions.rows_left * self.pace.step_s
        self._link.send(
            wire_observation.encode(
                Observation(
                    header,
                    self._client_id,
                    self.progress.episode_id,
                    state,
                    images,
                    self._task,
                    queue_remaining_s=left_s,
                )
            )
        )
        self.progress.requests_sent += 1
        return pending

    def _wait_for_answer(self, pending: Pending) -> None:
        """Take answers until the pending one came, or its time is over."""
        deadline_ns = pending.sent_ns + int(self.pace.request_timeout_s * 1e9)
        while self._ledger.pending and not self._stop.is_set():
            if self._reset_wanted.is_set():
                return
            left_s = (deadline_ns - self._clock()) / 1e9
            if left_s <= 0:
                self._time_out()
                return
            self._take(left_s)

    def _time_out(self) -> None:
        """Open the session anew: the server may have forgotten us, or be another one."""
        self.drops['request_timeout'] += 1
        self._ledger.give_up()
        self.progress.late, self.progress.connected = True, False

    def _take(self, wait_s: float) -> None:
        """Wait for what arrives; it counts, or is dropped with a reason."""
        try:
            arrived = self._arrived.get(timeout=wait_s)
        except queue.Empty:
            return
        if arrived:
            self._on_answer(*arrived)

    def _on_answer(self, raw: bytes, arrived_ns: int) -> None:
        try:
            chunk = wire_chunk.decode(raw)
            if chunk.client_id != self._client_id:
                raise Dropped('other_client')
            pending = self._ledger.accept(chunk.header)
            self._note_failure(chunk)
            check_actions(chunk, self._columns)
        except Malformed as error:
            self.drops[error.reason] += 1
        except Dropped as dropped:
            self.drops[dropped.reason] += 1
        else:
            self._merge(chunk, pending, arrived_ns)

    def _note_failure(self, chunk: Chunk) -> None:
        if chunk.status != Status.OK:
            self.progress.failed = f'the server says: {chunk.status_text}'
            self.progress.connected = chunk.status not in RECONNECT

    def _merge(self, chunk: Chunk, pending: Pending, arrived_ns: int) -> None:
        source = Source(
            pending.seq,
            self._ledger.session_epoch,
            self._ledger.episode,
            self.progress.episode_id,
            pending.captured_ns,
            chunk.slot,
            chunk.policy,
        )
        round_trip_s = (arrived_ns - pending.sent_ns) / 1e9
        if self.pace.append:
            self._actions.append(chunk.robot, source)
        else:
            self._actions.replace(
                chunk.robot,
                source,
                delay_rows=math.ceil(round_trip_s / self.pace.step_s),
                rows_taken=pending.rows_taken,
            )
        # until now the server may not have heard that the episode began
        self._episode_start = False
        self.progress.accepted(chunk, round_trip_ms=1e3 * round_trip_s)
