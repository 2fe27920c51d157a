"""
The thread that opens sessions and asks for chunks, one at a time.

It talks to the world through a `Link`, so that it can be tried without ROS. What it decides, step
by step: whom to ask; wait until little is left to play; ask; wait for the answer; go to the next
server when there is none. What it lives through it tells the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
import queue
import threading

from lerobot_serve.edge.answers import check_agreement
from lerobot_serve.edge.exchange import Exchange, Outcome
from lerobot_serve.edge.ledger import Pending
from lerobot_serve.edge.link import Episode, Link, Pace
from lerobot_serve.edge.queue.actions import ActionQueue
from lerobot_serve.edge.servers import Servers
from lerobot_serve.edge.states import Connection, Event, MEANS, State
from lerobot_serve.wire.session import Refused, Unreachable

INPUT_RETRY_S = 0.02
# how often the passing of time alone is looked at
LOOK_S = 0.1
# rounding may leave less than nothing to wait for
SHORTEST_WAIT_S = 0.001
# a session in which nothing was asked for so long is opened anew
FORGOTTEN_AFTER_S = 10.0
# answers without actions, one after the other, until another server is asked
FAILURES_LIMIT = 5


class Requester:
    """
    `run` is the body of the thread; `on_chunk`, `begin`, `rest` and `close` are any thread's.
    """

    def __init__(
        self,
        link: Link,
        exchange: Exchange,
        actions: ActionQueue,
        connection: Connection,
        servers: Servers,
        *,
        pace: Pace,
        clock: Callable[[], int],
    ) -> None:
        self._link, self.exchange, self._actions = link, exchange, actions
        self.connection, self.servers = connection, servers
        self._clock = clock
        # a change holds from the next episode on
        self.pace = self.next_pace = pace
        self._open = False
        self._failures = 0
        # of the servers asked in this round
        self._none_fits = True
        self._wanted_since_ns: int | None = None
        self._resting_since_ns: int | None = None
        self._arrived: queue.SimpleQueue[tuple[bytes, int] | None] = queue.SimpleQueue()
        self._stop = threading.Event()
        self._resting = threading.Event()
        # at most one: of two begun at once, the later counts
        self._begun: deque[Episode] = deque(maxlen=1)

    # called by other threads

    def on_chunk(self, raw: bytes) -> None:
        """Deposit an answer."""
        self._arrived.put((raw, self._clock()))

    def begin(self, episode: Episode) -> None:
        """
        End the episode that is: what is left of it is not played. The thread begins this one as
        soon as it gets to it. A robot that was given up is so no more.
        """
        self._begun.append(episode)
        self._actions.clear()
        self.connection.on(Event.REVIVED, 'an operator began an episode')
        self._arrived.put(None)

    def rest(self, *, resting: bool) -> None:
        """Ask for nothing while resting; what is left to play stays."""
        (self._resting.set if resting else self._resting.clear)()
        self._arrived.put(None)

    def close(self) -> None:
        """Let `run` return."""
        self._stop.set()
        self._arrived.put(None)

    # the thread

    def run(self) -> None:
        while not self._stop.is_set():
            if self._begun:
                self._begin_episode(self._begun.pop())
            elif self._is_idle():
                self._rest()
            else:
                self._wake_up()
                (self._step if self._open else self._connect)()
            self._look_at_the_clock()
        self.exchange.leave()
        if self._open:
            self._link.close_session()

    def _is_idle(self) -> bool:
        if self.connection.state == State.DEAD:
            return True
        # who rests asks for nothing, but a session that is lost is opened again: otherwise the
        # robot would be given up for being paused
        lost = not self._open and self.connection.state == State.RECONNECTING
        return self._resting.is_set() and not lost

    def _rest(self) -> None:
        self._wanted_since_ns = None
        if self._resting_since_ns is None:
            self._resting_since_ns = self._clock()
        self._take(LOOK_S)

    def _wake_up(self) -> None:
        """A server may have closed a session in which nobody asked: open it again."""
        since_ns, self._resting_since_ns = self._resting_since_ns, None
        if since_ns is not None and self._clock() - since_ns > FORGOTTEN_AFTER_S * 1e9:
            self._open = False

    def _look_at_the_clock(self) -> None:
        self.connection.check_timers(
            wanted_since_ns=self._wanted_since_ns,
            degraded_after_s=self.pace.degraded_after_s,
            max_offline_s=self.pace.max_offline_s,
        )

    def _begin_episode(self, episode: Episode) -> None:
        self.pace = self.next_pace
        self._wanted_since_ns = None
        home = self.servers.preferred
        if self._open and self._link.is_there(home) and self.servers.go_home():
            self._link.close_session()
            self._open = False
        self.exchange.begin_episode(episode, tell=self._open)

    def _connect(self) -> None:
        server = self.servers.present
        if self.servers.has_others and not self._link.is_there(server):
            # another one may be there; to wait for this one would cost what is buffered
            self._fail(Event.LOST, 'it is not there')
            return
        epoch = self.exchange.next_epoch()
        try:
            agreement = self._link.open_session(server, epoch)
            check_agreement(agreement)
        except Unreachable as error:
            self._fail(Event.LOST, str(error))
        except Refused as refused:
            # a refusal without a reason may be another one later
            self._fail(MEANS.get(refused.code, Event.LOST), str(refused))
        else:
            self._open = True
            self.exchange.progress.server = server
            self.exchange.begin_session(server, agreement)
            self.connection.on(Event.OPENED, f'a session with {server} is open')

    def _fail(self, event: Event, reason: str) -> None:
        """Go to the next server; after the last of them, wait."""
        self._open, self._failures = False, 0
        self.exchange.progress.server = ''
        wait_s = self.servers.failed(reason)
        self._none_fits &= event is Event.VIOLATION
        # as long as one of them may still fit, none is a reason to give up
        final = self._none_fits and not self.servers.has_untried
        self.connection.on(Event.VIOLATION if final else Event.LOST, self.servers.text)
        if not self.servers.has_untried:
            self._none_fits = True
        if wait_s:
            self._take(wait_s)

    def _step(self) -> None:
        """Do the next thing; never blocks for longer than a request may take."""
        left_s = self.exchange.left_s(self.pace)
        if left_s > self.pace.buffer_time_s:
            self._wanted_since_ns = None
            surplus_s = left_s - self.pace.buffer_time_s
            self._take(min(max(surplus_s, SHORTEST_WAIT_S), LOOK_S))
            return
        if self._wanted_since_ns is None:
            self._wanted_since_ns = self._clock()
        pending = self.exchange.ask(self.pace)
        if pending is None:
            self._take(INPUT_RETRY_S)
            return
        if self._wait_for_answer(pending) is Outcome.FAILED:
            self._on_failed_answer()

    def _on_failed_answer(self) -> None:
        self._failures += 1
        if self._failures >= FAILURES_LIMIT:
            self._fail(Event.LOST, self.exchange.progress.failed)
        # a server that refuses at once must not be asked as fast as it can refuse
        self._stop.wait(self.pace.step_s)

    def _wait_for_answer(self, pending: Pending) -> Outcome | None:
        """Take answers until the pending one came, or its time is over."""
        deadline_ns = pending.sent_ns + int(self.pace.request_timeout_s * 1e9)
        while self.exchange.pending and not self._stop.is_set() and not self._begun:
            left_s = (deadline_ns - self._clock()) / 1e9
            if left_s <= 0:
                self.exchange.time_out()
                self._fail(Event.LOST, f'no answer within {self.pace.request_timeout_s:g} s')
                return None
            outcome = self._take(min(left_s, LOOK_S))
            if outcome not in (None, Outcome.DROPPED):
                return outcome
            self._look_at_the_clock()
        return None

    def _take(self, wait_s: float) -> Outcome | None:
        """Wait for what arrives, and return what became of it."""
        try:
            arrived = self._arrived.get(timeout=wait_s)
        except queue.Empty:
            return None
        if not arrived:
            return None
        outcome = self.exchange.on_answer(*arrived, self.pace)
        if outcome is Outcome.MERGED:
            self._wanted_since_ns, self._failures = None, 0
            self.servers.answered()
            self._none_fits = True
            self.connection.on(Event.MERGED, '')
        elif outcome is Outcome.SESSION_OVER:
            self._fail(Event.LOST, self.exchange.progress.failed)
        return outcome
