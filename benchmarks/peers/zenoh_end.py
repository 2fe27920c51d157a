# SPDX-License-Identifier: Apache-2.0
"""One end of a bare exchange over Zenoh: a key that it hears, and one that it says. Any thread."""

from __future__ import annotations

from collections.abc import Callable

import zenoh
from zenoh.handlers import Callback

from benchmarks.harness.processes import wait_until
from benchmarks.peers.peer_process import Address, READY_S


class ZenohEnd:
    """A session, and what it declares, for the life of the process."""

    def __init__(
        self, configuration: str, hears: str, says: str, take: Callable[[bytes], object]
    ) -> None:
        """A thread of Zenoh gives each message to `take`."""
        self._session = zenoh.open(zenoh.Config.from_json5(configuration))
        deliver = Callback(lambda sample: take(sample.payload.to_bytes()), indirect=False)
        self._subscriber = self._session.declare_subscriber(hears, deliver)
        self._publisher = self._session.declare_publisher(
            says, congestion_control=zenoh.CongestionControl.DROP
        )

    def put(self, raw: bytes) -> None:
        """Send a message; it is dropped where the link is full."""
        self._publisher.put(raw)

    def wait_until_heard(self) -> None:
        """Return when the other end is there. Raises UserError after READY_S."""
        publisher = self._publisher
        wait_until(lambda: publisher.matching_status.matching, 'nobody hears', READY_S)


def endpoint(address: Address) -> str:
    """Return where a server listens, as Zenoh writes it."""
    return f'tcp/{address.host}:{address.port}'
