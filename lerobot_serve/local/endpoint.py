# SPDX-License-Identifier: Apache-2.0
"""
The local path of a server: its socket, its clients, their pages.

`run` is the body of the thread `local`, which receives requests and passes them on; any thread
offers and sends. A request of a process of the same user is read in its page, without a copy: such
a process could read and write this one's memory anyway. One of another user, whom the operator
allowed with a group, is copied before anything of it is read, since it could change it after a
check.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
from dataclasses import dataclass, field
import os
from pathlib import Path
import secrets
import selectors
import socket
import threading
import time

from lerobot_serve.contract.cdr import Raw
from lerobot_serve.errors import UserError
from lerobot_serve.local import frames
from lerobot_serve.local.access import Access
from lerobot_serve.local.frames import Frame
from lerobot_serve.local.offer import Offer, socket_address
from lerobot_serve.local.pages import PAGES_LIMIT, ReadPage

CONNECTIONS_LIMIT = 4096
# reasons of drops
EXPIRED, MALFORMED, DENIED = 'local_expired', 'local_malformed', 'local_denied'


@dataclass(slots=True, eq=False)
class Connection:
    """
    A client: whether its requests are read in their pages, and whether it ever had a session.
    """

    socket: socket.socket
    in_place: bool
    has_attached: bool = False
    pages: dict[int, ReadPage] = field(default_factory=dict)
    topics: set[str] = field(default_factory=set)


class LocalEndpoint:
    """See the module. The thread that builds the node builds and closes it."""

    def __init__(
        self,
        access: Access,
        on_request: Callable[[Raw], None],
        on_drop: Callable[[str], None],
        folder: str = '',
    ) -> None:
        """
        Listen on a socket without a file, or with one in `folder`, for clients in another
        container. `on_request` runs in the thread `local`. Raises UserError.
        """
        self._access, self._on_request, self._on_drop = access, on_request, on_drop
        name = f'lerobot_serve-{secrets.token_hex(8)}'
        self.address = str(Path(folder) / f'{name}.socket') if folder else f'@{name}'
        self._listener = self._listen()
        self._wake_end, self._wait_end = socket.socketpair()
        self._spare = os.dup(self._wait_end.fileno())
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wait_end, selectors.EVENT_READ)
        # of each open reply topic, its token and its client
        self._tokens: dict[str, bytes] = {}
        self._topics: dict[bytes, str] = {}
        self._clients: dict[str, Connection] = {}
        self._lock = threading.Lock()

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(socket_address(self.address))
            if not self.address.startswith('@'):
                # a group or another user is allowed in by `Access`, not by the mode of the file
                os.chmod(self.address, 0o666)
            listener.listen(64)
        except OSError as error:
            listener.close()
            raise UserError(
                f'the local path cannot listen on {self.address}: {error.strerror or error}; set '
                'local_folder to a folder that this user may write, or local_path to false'
            ) from None
        listener.setblocking(False)
        return listener

    # any thread

    def offer(self, topic: str) -> Offer:
        """Offer the path to the client of a session with this reply topic."""
        with self._lock:
            token = self._tokens.get(topic)
            if token is None:
                token = self._tokens[topic] = secrets.token_bytes(frames.TOKEN_BYTES)
                self._topics[token] = topic
        return Offer(self.address, token, frames.VERSION)

    def send(self, topic: str, raw: bytes, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """
        Send a chunk to the client of a topic; return False for one that is not wanted, and for one
        that must take the link around this path: without a client here, with one that reads too
        slowly, and if it is too large. `is_wanted` is called under the lock, as in
        ReplyPublishers.
        """
        if len(raw) > frames.CHUNK_BYTES_LIMIT:
            return False
        with self._lock:
            client = self._clients.get(topic)
            if client is None or not is_wanted():
                return False
            try:
                client.socket.sendmsg(
                    (frames.CHUNK, raw), (), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL
                )
            except OSError:
                return False
        return True

    def has_client(self, topic: str) -> bool:
        """Return whether the client of a topic is connected here."""
        return topic in self._clients

    def retain(self, topics: set[str]) -> None:
        """Forget all other topics; their clients stay connected, and may open sessions again."""
        with self._lock:
            for topic in self._tokens.keys() - topics:
                self._topics.pop(self._tokens.pop(topic))
                client = self._clients.pop(topic, None)
                if client:
                    client.topics.discard(topic)

    # thread `local`

    def run(self, stop: threading.Event) -> None:
        """Receive until `stop` is set and `wake` is called."""
        while not stop.is_set():
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is not self._wait_end:
                    self._receive(key.data)

    def wake(self) -> None:
        """End the current wait; any thread."""
        with contextlib.suppress(OSError):
            self._wake_end.send(b'\0')

    def _accept(self) -> None:
        try:
            client, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError:
            self._turn_away()
            return
        is_full = len(self._selector.get_map()) > CONNECTIONS_LIMIT
        if is_full or not self._access.is_allowed(client):
            self._on_drop(DENIED)
            client.close()
            return
        client.setblocking(False)
        connection = Connection(client, self._access.is_same_user(client))
        self._selector.register(client, selectors.EVENT_READ, connection)

    def _turn_away(self) -> None:
        """
        Refuse a client for which no descriptor is left, with one that is kept for this: it would
        be met again at once, and for good.
        """
        self._on_drop(DENIED)
        # another thread may take the number meanwhile
        with contextlib.suppress(OSError):
            os.close(self._spare)
            self._listener.accept()[0].close()
        with contextlib.suppress(OSError):
            self._spare = os.dup(self._wait_end.fileno())

    def _receive(self, connection: Connection) -> None:
        """Process one frame: each client in its turn."""
        try:
            frame, descriptors, flags, _ = socket.recv_fds(
                connection.socket, frames.FRAME_BYTES_LIMIT, 1
            )
        except BlockingIOError:
            return
        except OSError:
            frame, descriptors, flags = b'', [], 0
        if not frame:
            _close(descriptors)
            self._end(connection)
            return
        try:
            if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise ValueError('a frame is too large, or has several descriptors')
            self._process(connection, frame, descriptors)
        except ValueError:
            self._on_drop(MALFORMED)
            self._end(connection, frames.CLOSE)
        finally:
            _close(descriptors)

    def _process(self, connection: Connection, frame: bytes, descriptors: list[int]) -> None:
        """Raises ValueError for what is not a frame of a client."""
        if frame[0] == Frame.REQUEST:
            request = frames.read_request(frame)
            if descriptors:
                self._map(connection, request.page, descriptors.pop())
            self._on_frame_request(connection, request)
        elif frame[0] == Frame.ATTACH:
            self._attach(connection, *frames.read_attach(frame))
        else:
            raise ValueError(f'a client sends no frame {frame[0]}')

    def _map(self, connection: Connection, number: int, descriptor: int) -> None:
        """Take a page. Raises ValueError."""
        page = ReadPage(descriptor)
        if number >= PAGES_LIMIT:
            raise ValueError(f'a connection has at most {PAGES_LIMIT} pages')
        connection.pages[number] = page

    def _on_frame_request(self, connection: Connection, request: frames.Request) -> None:
        page = connection.pages.get(request.page)
        if page is None or not connection.has_attached:
            raise ValueError('a request needs a page and a session')
        if time.monotonic_ns() > request.expires_ns:
            page.free()
            self._on_drop(EXPIRED)
            return
        read = page.lease if connection.in_place else page.copy
        self._on_request(read(request.size))

    def _attach(self, connection: Connection, version: int, token: bytes) -> None:
        """Send the replies of a session to this client from now on."""
        with self._lock:
            topic = self._topics.get(token)
            if version != frames.VERSION:
                answer = frames.refused(f'version {version}, the server has {frames.VERSION}')
            elif topic is None:
                answer = frames.refused('the session is over')
            else:
                # a client that comes back has a new connection before its old one ends
                before = self._clients.get(topic)
                if before:
                    before.topics.discard(topic)
                self._clients[topic], answer = connection, frames.WELCOME
                connection.topics.add(topic)
                connection.has_attached = True
            with contextlib.suppress(OSError):
                connection.socket.send(answer, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    def _end(self, connection: Connection, farewell: bytes = b'') -> None:
        """Forget a client."""
        self._selector.unregister(connection.socket)
        with self._lock:
            for topic in connection.topics:
                del self._clients[topic]
            if farewell:
                with contextlib.suppress(OSError):
                    connection.socket.send(farewell, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
            connection.socket.close()

    def close(self) -> None:
        """Say goodbye to the clients; `run` has returned."""
        for key in tuple(self._selector.get_map().values()):
            if isinstance(key.data, Connection):
                self._end(key.data, frames.CLOSE)
        self._selector.close()
        os.close(self._spare)
        for each in (self._listener, self._wake_end, self._wait_end):
            each.close()
        if not self.address.startswith('@'):
            Path(self.address).unlink(missing_ok=True)


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
