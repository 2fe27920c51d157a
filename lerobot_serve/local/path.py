# SPDX-License-Identifier: Apache-2.0
"""
The local path of a client to one server, inside a link that carries everything else.

Any thread opens, sends and closes. The thread `local` of a connection delivers replies; or, where
a caller waits for each reply, that caller does, which spares a hand-over, and the thread waits for
the end of the connection.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import math
import os
import select
import socket
import threading
import time

from msgspec.structs import replace

from lerobot_serve.contract.cdr import Outgoing, Parts
from lerobot_serve.contract.records import OpenSessionResponse
from lerobot_serve.local import frames
from lerobot_serve.local.access import Access, SAME_USER
from lerobot_serve.local.frames import Frame
from lerobot_serve.local.offer import Offer, socket_address, take
from lerobot_serve.local.pages import WrittenPage, WrittenPages
from lerobot_serve.local.signal import Signal

CONNECT_TIMEOUT_S = 1.0
# until a caller that waits takes the place of the one that received and has left
TAKE_OVER_S = 0.05
# gets whether a server that has gone was lost, which is to say killed, or said goodbye
OnGone = Callable[[bool], None]
MakePath = Callable[[Callable[[bytes], None], OnGone], 'LocalPath']


class NotAttached(Exception):
    """The server does not send the replies of a session here, for the reason in the text."""


class LocalConnection:
    """A connection to one server. See the module for threads; one at a time receives."""

    def __init__(
        self,
        address: str,
        access: Access,
        on_chunk: Callable[[bytes], None],
        on_end: Callable[[LocalConnection, bool], None],
        *,
        callers_receive: bool = False,
    ) -> None:
        """`on_end` gets whether the server was lost. Raises OSError."""
        self.address, self._on_chunk, self._on_end = address, on_chunk, on_end
        self._pages, self._lock = WrittenPages(), threading.Lock()
        self.is_closed, self._is_lost = False, True
        self._answered, self._answer = Signal(), b''
        # held by the one that receives, whose thread `_receiver` is
        self._receiving, self._receiver = threading.Lock(), 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.settimeout(CONNECT_TIMEOUT_S)
            self._socket.connect(socket_address(address))
            if not access.is_allowed(self._socket):
                raise PermissionError('the server belongs to another user')
            self._socket.settimeout(None)
            self._wake_up = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except BaseException:
            self._socket.close()
            raise
        self._arrivals = select.poll()
        for descriptor in (self._socket.fileno(), self._wake_up):
            self._arrivals.register(descriptor, select.POLLIN)
        run = self._watch if callers_receive else self._run
        threading.Thread(target=run, name='local', daemon=True).start()

    def attach(self, token: bytes) -> None:
        """Have the replies of a session sent here. Raises OSError and NotAttached."""
        self._answered.clear()
        self._socket.send(frames.attach(token), socket.MSG_NOSIGNAL)
        if not self.wait(self._answered, CONNECT_TIMEOUT_S):
            raise NotAttached(f'the server did not answer within {CONNECT_TIMEOUT_S:g} s')
        if self.is_closed:
            raise NotAttached('the server has gone')
        if self._answer != frames.WELCOME:
            raise NotAttached(self._answer[1:].decode(errors='replace'))

    def send(self, raw: Outgoing, lifespan_s: float) -> bool:
        """Send a request; return False where it must take the link around this path."""
        if self.is_closed:
            return False
        expires_ns = time.monotonic_ns() + int(lifespan_s * 1e9)
        with self._lock:
            try:
                parts = raw.buffers if isinstance(raw, Parts) else (raw,)
                written = self._pages.write(parts, len(raw))
            except OSError:
                # no memory
                return False
            return written is not None and self._send_page(*written, len(raw), expires_ns)

    def _send_page(self, number: int, page: WrittenPage, size: int, expires_ns: int) -> bool:
        """Tell the server of a request; return False for one that does not read, or is lost."""
        frame = frames.request(frames.Request(number, size, expires_ns))
        flags = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
        try:
            if page.is_handed_over:
                self._socket.send(frame, flags)
            else:
                socket.send_fds(self._socket, (frame,), (page.descriptor,), flags)
                page.hand_over()
        except OSError:
            page.free()
            return False
        return True

    def wait(self, signal: Signal, timeout_s: float) -> bool:
        """
        Return whether a signal is set within the timeout; receive meanwhile, unless another thread
        does.
        """
        end_s = time.monotonic() + timeout_s
        while not signal.is_set() and (left_s := end_s - time.monotonic()) > 0:
            if self.is_closed:
                Signal.wait(signal, left_s)
            elif self._receiving.acquire(blocking=False):
                try:
                    self._receive(signal, left_s)
                finally:
                    self._receiver = 0
                    self._receiving.release()
            else:
                Signal.wait(signal, min(left_s, TAKE_OVER_S))
        return signal.is_set()

    def _receive(self, signal: Signal, timeout_s: float) -> None:
        """Wait for a frame, and process it; `wake` ends the wait."""
        # before the look at the signal: a thread that sets it later wakes this one
        self._receiver = threading.get_ident()
        if signal.is_set():
            return
        for descriptor, _ in self._arrivals.poll(math.ceil(timeout_s * 1e3)):
            if descriptor == self._wake_up:
                os.eventfd_read(self._wake_up)
            else:
                self._process()

    def wake(self) -> None:
        """End the wait of another thread."""
        if self._receiver not in (0, threading.get_ident()):
            with self._lock:
                if not self.is_closed:
                    os.eventfd_write(self._wake_up, 1)

    def _process(self) -> None:
        """Process the next frame, or the end."""
        try:
            frame = self._socket.recv(frames.FRAME_BYTES_LIMIT)
        except OSError:
            frame = b''
        if not frame:
            self.is_closed = True
        elif frame[0] == Frame.CHUNK:
            self._on_chunk(frame[1:])
        elif frame[0] == Frame.CLOSE:
            self.is_closed, self._is_lost = True, False
        else:
            self._answer = frame
            self._answered.set()

    def _watch(self) -> None:
        """Wait until either side closes, then process what is left."""
        end = select.poll()
        end.register(self._socket, 0)
        end.poll()
        self._run()

    def _run(self) -> None:
        """Deliver replies until either side closes."""
        with self._receiving:
            while not self.is_closed:
                self._process()
            # a busy sender would keep the lock from this thread, unless it knows first
            with self._lock:
                self._pages.close()
                self._socket.close()
                os.close(self._wake_up)
        self._answered.set()
        self._on_end(self, self._is_lost)

    def close(self) -> None:
        """End the thread, which closes the rest."""
        self.is_closed = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)


class LocalPath:
    """
    The path of one client, without a connection until a server offers one. `on_chunk` and
    `on_gone` run in the thread `local`.
    """

    def __init__(
        self,
        on_chunk: Callable[[bytes], None],
        on_gone: OnGone,
        *,
        lifespan_s: float,
        access: Access = SAME_USER,
        log: Callable[[str], object] = lambda _: None,
        callers_receive: bool = False,
    ) -> None:
        """
        A server does not begin on a request that is older than `lifespan_s`. `callers_receive`:
        those that wait for a `signal` deliver replies, and no other thread.
        """
        self._on_chunk, self._on_gone, self._lifespan_s = on_chunk, on_gone, lifespan_s
        self._access, self._log, self._callers_receive = access, log, callers_receive
        self._connection: LocalConnection | None = None
        self._opening, self._changing = threading.Lock(), threading.Lock()

    @property
    def is_connected(self) -> bool:
        return self._connection is not None

    def accept(self, reply: OpenSessionResponse) -> OpenSessionResponse:
        """
        Use what a server offers with a session, if this process can; return the reply without the
        offer, which is for this client alone. Blocks for a moment.
        """
        offered, others = take(reply.extensions)
        if offered:
            self.use(offered)
        return replace(reply, extensions=tuple(others))

    def use(self, offer: Offer) -> None:
        """Use an offer, if this process can. Blocks for a moment."""
        with self._opening:
            try:
                self._attach(offer)
            except (FileNotFoundError, ConnectionRefusedError):
                # a server of another host, or of another container
                return
            except (OSError, NotAttached) as error:
                self._log(f'the local path of the server is not used: {error}')

    def _attach(self, offer: Offer) -> None:
        """Raises OSError and NotAttached."""
        connection = self._connection
        if connection is None or connection.address != offer.address:
            self.close()
            connection = LocalConnection(
                offer.address,
                self._access,
                self._on_chunk,
                self._on_end,
                callers_receive=self._callers_receive,
            )
        try:
            connection.attach(offer.token)
        except BaseException:
            # one that is in use carries other sessions, which go on
            if connection is not self._connection:
                connection.close()
            raise
        self._connection = connection
        # its server may have been killed meanwhile
        if connection.is_closed:
            self._on_end(connection, is_lost=True)

    def _on_end(self, connection: LocalConnection, is_lost: bool) -> None:
        with self._changing:
            is_current = self._connection is connection
            if is_current:
                self._connection = None
        if is_current:
            self._on_gone(is_lost)

    def send(self, raw: Outgoing) -> bool:
        """Send a request; return False where it must take the link around this path."""
        connection = self._connection
        return connection is not None and connection.send(raw, self._lifespan_s)

    def signal(self) -> Signal:
        """Return a signal whose `wait` receives replies, where callers do."""
        return ReceivingSignal(self) if self._callers_receive else Signal()

    def wait(self, signal: Signal, timeout_s: float) -> bool:
        """Return whether a signal is set within the timeout; receive meanwhile."""
        connection = self._connection
        if connection is None:
            return Signal.wait(signal, timeout_s)
        return connection.wait(signal, timeout_s)

    def wake(self) -> None:
        """End the wait of another thread, which receives; its signal is set."""
        connection = self._connection
        if connection:
            connection.wake()

    def close(self) -> None:
        """End the connection."""
        connection, self._connection = self._connection, None
        if connection:
            connection.close()


class ReceivingSignal(Signal):
    """The signal of a caller that receives while it waits."""

    def __init__(self, path: LocalPath) -> None:
        super().__init__()
        self._path = path

    def set(self) -> None:
        super().set()
        self._path.wake()

    def wait(self, timeout_s: float) -> bool:
        return self._path.wait(self, timeout_s)


class NoPath(LocalPath):
    """A path that is never used."""

    def use(self, offer: Offer) -> None:
        pass


NO_PATH = NoPath(lambda _: None, lambda _: None, lifespan_s=0.0)
