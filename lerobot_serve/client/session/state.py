# SPDX-License-Identifier: Apache-2.0
"""
What one session knows: its machine and turns, its episode and history, what was agreed.

Any thread calls any method; a thread of the link delivers replies. Nothing here waits: each change
of a turn sets its signal, and its owner looks at the turn again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
import threading

from msgspec.structs import replace
import numpy as np

from lerobot_serve.arrays import Float32Array
from lerobot_serve.client.errors import ClientClosed, Superseded
from lerobot_serve.client.session.inputs import ObservationHistory, Observed
from lerobot_serve.client.steps import Waker
from lerobot_serve.contract import image_codec
from lerobot_serve.contract.data_path.header import Header, read_envelope
from lerobot_serve.contract.data_path.message_parts import Image
from lerobot_serve.contract.data_path.observation import Observation
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.contract.records import (
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
)
from lerobot_serve.contract.schema import Codec
from lerobot_serve.contract.services.session import ServerUnreachable, SessionRefused
from lerobot_serve.session.machine import (
    LATE_CHUNK,
    ReplyDropped,
    SessionMachine,
    STALE_EPISODE,
    STALE_EPOCH,
    State,
)
from lerobot_serve.session.turns import Turns

# why a request of an earlier episode is superseded
EPISODE_ENDED = 'its episode ended'


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """The terms on which a session is opened, and how its images are encoded."""

    terms: OpenSessionRequest
    jpeg_quality: int = 90


@dataclass(slots=True, eq=False)
class Turn:
    """
    One call, owned by its caller.

    superseded  why it ended without a reply, empty while it may have one
    reply       the bytes of the reply to its last request, and when they arrived
    """

    signal: Waker
    superseded: str = ''
    reply: tuple[bytes, int] | None = None


def _stacked(states: list[Float32Array]) -> Float32Array:
    """Return the states as rows; most policies take one, which is not copied."""
    return states[0][None] if len(states) == 1 else np.stack(states)


class SessionState:
    """
    See the module. `machine` and `turns` are read without the lock. `dropped` counts the messages
    that no turn waits for, by reason.
    """

    def __init__(self, settings: SessionSettings) -> None:
        self.terms, self._jpeg_quality = settings.terms, settings.jpeg_quality
        self.machine = SessionMachine[Turn](self.terms.client_id)
        self.machine.begin_episode()
        self.turns = Turns[Turn]()
        self.dropped: Counter[str] = Counter()
        self.superseded = self.sessions_opened = self.requests_sent = 0
        self._lock, self._task = threading.Lock(), self.terms.task
        self._history = ObservationHistory(1, 1)
        self._last_fingerprint = ''
        # what was agreed for the session that was open last
        self.agreement: OpenSessionResponse | None = None

    def check_usable(self) -> None:
        """Raise ClientClosed for a session that has ended."""
        if self.machine.state is State.ENDED:
            raise ClientClosed('the session is closed', 'open another one')

    # the session

    def request(self, reply_topic: Callable[[int], str]) -> OpenSessionRequest:
        """Return the request of another session. Raises ClientClosed."""
        with self._lock:
            # it may have waited for a thread
            self.check_usable()
            return self.machine.request(replace(self.terms, task=self._task), reply_topic)

    def opened(self, request: OpenSessionRequest, agreement: OpenSessionResponse) -> bool:
        """Use a session; return False for one that nobody uses."""
        with self._lock:
            is_used = self.machine.opened(request.session_epoch, agreement.schema_version)
            if is_used:
                self.sessions_opened += 1
                self.agreement = agreement
                steps, stride = agreement.observation_steps, agreement.observation_stride_steps
                self._history = self._history.resized(max(1, steps), max(1, stride))
            return is_used

    def failed(
        self, request: OpenSessionRequest, error: SessionRefused | ServerUnreachable
    ) -> None:
        """Note why a session was not opened."""
        with self._lock:
            self.machine.failed(request.session_epoch, error)

    def lost(self, why: str) -> None:
        """The server has no session of this client any more."""
        with self._lock:
            self.machine.lost(why)

    def server_changed(self, loss: str = '') -> None:
        """Wake the turn that runs: its server went away, with its request, or is back."""
        with self._lock:
            if loss:
                self.machine.lost(loss)
                self.machine.release()
            if self.turns.running:
                self.turns.running.signal.set()

    def end(self) -> None:
        """Request nothing more; both turns wake and leave."""
        with self._lock:
            self.machine.end()
            self._supersede('the session was closed', self.turns.all)

    # turns

    def enter(self, signal: Waker, observed: Observed | None = None) -> Turn:
        """
        Return a new turn, for an observation if it is given: it runs, or waits and replaces the
        one that waited. Raises ClientClosed.
        """
        turn = Turn(signal)
        with self._lock:
            self.check_usable()
            if observed:
                self._history.add(observed)
            replaced = self.turns.enter(turn)
            if replaced:
                self._supersede('a newer request of this session replaced it', [replaced])
        return turn

    def leave(self, turn: Turn) -> None:
        """End a turn, whatever its result; the waiting one runs."""
        with self._lock:
            if turn is self.turns.running:
                self.machine.release()
            following = self.turns.leave(turn)
            if following:
                following.signal.set()

    def check_turn(self, turn: Turn) -> None:
        """Raise Superseded or ClientClosed for a turn that has ended."""
        if turn.superseded:
            self.check_usable()
            raise Superseded(turn.superseded, 'await one prediction before the next')

    def supersede(self, signal: Waker, reason: str) -> None:
        """End the turns of one signal; they wake and leave."""
        with self._lock:
            self._supersede(reason, [each for each in self.turns.all if each.signal is signal])

    def _supersede(self, reason: str, turns: Iterable[Turn]) -> None:
        """With the lock."""
        for turn in turns:
            if turn is self.machine.in_flight:
                self.machine.release()
            self.superseded += not turn.superseded
            turn.superseded = turn.superseded or reason
            turn.signal.set()

    # requests and replies

    def begin_episode(self, task: str | None, episode_id: str) -> str:
        """End the episode and both turns; return the id of the next one. Raises ClientClosed."""
        with self._lock:
            self.check_usable()
            self._task = self.terms.task if task is None else task
            self._history.clear()
            self.machine.begin_episode(episode_id)
            self._supersede(EPISODE_ENDED, self.turns.all)
            return self.machine.episode_id

    def reset_request(self) -> ResetEpisodeRequest:
        """Return the announcement of the present episode."""
        with self._lock:
            return self.machine.reset_request()

    def observe(self, observed: Observed) -> None:
        """Add the observation of a control step."""
        with self._lock:
            self._history.add(observed)

    def next_observation(self, turn: Turn, task: str | None, now_ns: int) -> Observation:
        """Return a request of the newest observation. Raises Unencodable, and as check_turn."""
        with self._lock:
            # its session may have taken seconds to open: the episode may have ended meanwhile
            self.check_turn(turn)
            assert self.agreement
            rows, episode_id = self._history.rows(), self.machine.episode_id
            header = self.machine.next_header(now_ns)
            task = self._task if task is None else task
            codec = Codec(self.agreement.codec)
        return Observation(
            header,
            self.terms.client_id,
            episode_id,
            state=_stacked([observed.state for observed, _ in rows]),
            images=self._images(rows, codec),
            task=task,
        )

    def sent(self, turn: Turn) -> bool:
        """Await the reply to the last request; False if turn or session has ended meanwhile."""
        with self._lock:
            turn.reply = None
            runs = turn is self.turns.running and not turn.superseded
            if runs and self.machine.is_open:
                self.machine.sent(turn)
                self.requests_sent += 1
            return turn is self.machine.in_flight

    def on_message(self, raw: bytes, arrived_ns: int) -> None:
        """Deposit the reply to a turn; a message that no turn waits for is counted."""
        with self._lock:
            try:
                header, client_id, _ = read_envelope(raw)
                if client_id != self.terms.client_id:
                    raise ReplyDropped('wrong_client')
                turn = self.machine.take(header)
            except (Malformed, ReplyDropped) as error:
                self._count_dropped(error.reason)
            else:
                turn.reply = raw, arrived_ns
                turn.signal.set()

    def _count_dropped(self, reason: str) -> None:
        # a stale one is late, too, where nothing is in flight
        is_stale = reason in (STALE_EPOCH, STALE_EPISODE) and self.machine.in_flight is None
        self.dropped['late_reply' if is_stale or reason == LATE_CHUNK else reason] += 1

    def on_chunk(self, header: Header, fingerprint: str) -> bool:
        """
        Note the policy of a chunk, and that the server knows the start of its episode; return
        whether the chunk before was of another policy.
        """
        with self._lock:
            if not self.machine.mismatch(header):
                self.machine.awaits_start = False
            before, self._last_fingerprint = self._last_fingerprint, fingerprint
        return bool(before) and before != fingerprint

    def _images(self, rows: tuple[tuple[Observed, int], ...], codec: Codec) -> tuple[Image, ...]:
        quality = self._jpeg_quality
        return tuple(
            image_codec.encode(name, frame, codec, quality=quality, steps_back=steps_back)
            for observed, steps_back in rows
            for name, frame in observed.frames.items()
        )
