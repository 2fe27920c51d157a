# SPDX-License-Identifier: Apache-2.0
"""An HTTP server that answers each request with raw bytes of the test's choice."""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import socket
import threading

Answer = Callable[[str, dict[str, str]], bytes]


class LyingServer:
    """
    `answer` gets path and headers and returns the bytes of a reply, which are sent; then the
    connection ends, or stays open without another byte if they end with HANG. Use with `with`.
    """

    HANG = b'<hang>'

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.requests: list[tuple[str, dict[str, str]]] = []
        self._socket = socket.create_server(('127.0.0.1', 0))
        self._held: list[socket.socket] = []
        self._thread = threading.Thread(target=self._serve, daemon=True)

    @property
    def url(self) -> str:
        return f'http://127.0.0.1:{self._socket.getsockname()[1]}'

    def __enter__(self) -> LyingServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        # wakes accept
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(30)
        for each in self._held:
            each.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                accepted, _ = self._socket.accept()
                self._reply(accepted)

    def _reply(self, accepted: socket.socket) -> None:
        head = b''
        while b'\r\n\r\n' not in head and (data := accepted.recv(4096)):
            head += data
        first, *lines = head.decode().split('\r\n')
        headers = {n.lower(): v for n, _, v in (each.partition(': ') for each in lines) if n}
        path = first.split(' ')[1]
        self.requests.append((path, headers))
        reply = self._answer(path, headers)
        with contextlib.suppress(OSError):
            accepted.sendall(reply.removesuffix(self.HANG))
        if reply.endswith(self.HANG):
            self._held.append(accepted)
        else:
            accepted.close()


def reply(body: bytes, status: str = '200 OK', **headers: str) -> bytes:
    """Return a reply with these headers; `Content_Length` has the length unless it is given."""
    lines = {'Content_Length': str(len(body)), **headers}
    text = ''.join(f'{name.replace("_", "-")}: {value}\r\n' for name, value in lines.items())
    return f'HTTP/1.1 {status}\r\n{text}\r\n'.encode() + body
