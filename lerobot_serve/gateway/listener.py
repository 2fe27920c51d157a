# SPDX-License-Identifier: Apache-2.0
"""The listening socket of an endpoint, behind TLS where it is set. The event loop owns it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from lerobot_serve.access.connections import ProtocolFactory, TlsHandshakes
from lerobot_serve.gateway.access import Exposure


class Listener:
    """
    Listens from `start` to `close`. `limit` is of TLS handshakes at the same time, `handshake_s`
    of each; `on_closed` is called for one that does not end.
    """

    def __init__(
        self,
        exposure: Exposure,
        on_closed: Callable[[], object],
        *,
        limit: int,
        handshake_s: float | None = None,
    ) -> None:
        self._exposure, self._on_closed = exposure, on_closed
        self._limit, self._handshake_s = limit, handshake_s
        self._server: asyncio.Server | None = None
        self._handshakes: TlsHandshakes | None = None
        self.port = 0

    async def start(self, create: ProtocolFactory) -> None:
        """Accept connections. Raises UserError for an address that cannot be used."""
        exposure = self._exposure
        if exposure.tls:
            create = self._handshakes = TlsHandshakes(
                exposure.tls,
                create,
                self._on_closed,
                limit=self._limit,
                limit_s=self._handshake_s,
            )
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(create, exposure.host, exposure.port)
        except OSError as error:
            raise exposure.cannot_listen(error.strerror or str(error)) from None
        self.port = self._server.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Accept no more, and end the handshakes that run. May be called twice."""
        for each in (self._server, self._handshakes):
            if each:
                each.close()
