# SPDX-License-Identifier: Apache-2.0
"""
One Zenoh session, with the quality of service of each kind of traffic.

Built by the thread that builds the node, closed once the node's threads have ended. Every method
may be called in any thread.
"""

from __future__ import annotations

from collections.abc import Callable
import contextlib
import os
import socket
import threading
import time
from typing import Any

import zenoh
from zenoh.handlers import Callback

from lerobot_serve.contract.cdr import Outgoing
from lerobot_serve.contract.names import file_name
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.errors import UserError
from lerobot_serve.zenoh.keys import server_of
from lerobot_serve.zenoh.settings import configuration, MESSAGE_WAIT_US, Traffic, ZenohSettings

OnPayload = Callable[[str, bytes], None]
OnPresence = Callable[[str, bool], None]
CALL_LATER_S = 2.0
CLOSE_LIMIT_S = 1.0
# Zenoh's own refusal where a server that is there replies too late
TIMED_OUT = 'Timeout'
# Zenoh drops a message of one batch that has waited for this long, and does not say so
DROPPED_AFTER_S = MESSAGE_WAIT_US / 1e6


class _Receiving(threading.local):
    """The payload that this thread receives now, and its bytes."""

    raw: bytes = b''
    payload: zenoh.ZBytes | None = None


_receiving = _Receiving()


class ZenohLink:
    """See the module."""

    def __init__(self, settings: ZenohSettings) -> None:
        """Raises UserError for wrong settings and for an address in use."""
        self.settings = settings
        text = configuration(settings)
        try:
            self._session = zenoh.open(zenoh.Config.from_json5(text))
        except zenoh.ZError as error:
            raise UserError(
                f'the Zenoh link does not open ({self.endpoints}): {first_sentence(error)}'
            ) from None

    @property
    def endpoints(self) -> str:
        """The endpoints of this link, for a text."""
        return ', '.join((*self.settings.listen, *self.settings.connect)) or 'no endpoint'

    @property
    def process(self) -> str:
        """The name of this process in the keys of its tokens: host, process id and session."""
        session = str(self._session.zid())[:8]
        return file_name(f'{socket.gethostname()}.{os.getpid()}.{session}')

    def is_connected(self) -> bool:
        """Return whether as many nodes are connected as `zenoh_connect` has endpoints."""
        info = self._session.info
        count = len(info.peers_zid()) + len(info.routers_zid())
        return count >= len(self.settings.connect)

    def publisher(self, key: str, traffic: Traffic) -> zenoh.Publisher:
        return self._session.declare_publisher(key, **_options(traffic))

    def put(self, key: str, raw: bytes, traffic: Traffic) -> bool:
        """Publish once on a key; return False when the link was full for DROPPED_AFTER_S."""
        begin_s = time.monotonic()
        self._session.put(key, raw, **_options(traffic))
        return time.monotonic() - begin_s < DROPPED_AFTER_S

    def subscribe(
        self, key: str, on_payload: OnPayload, *, may_wait: bool = False
    ) -> zenoh.Subscriber[None]:
        """
        Pass key and payload of each sample to `on_payload`, in the thread of Zenoh that receives
        it: it deposits, or sends on, and returns. One that `may_wait` has a thread of its own.
        """

        def deliver(sample: zenoh.Sample) -> None:
            payload = sample.payload
            raw = payload.to_bytes()
            _receiving.raw, _receiving.payload = raw, payload
            try:
                on_payload(str(sample.key_expr), raw)
            finally:
                # frees the shared memory
                _receiving.raw, _receiving.payload = b'', None

        return self._session.declare_subscriber(key, Callback(deliver, indirect=may_wait))

    def serve(self, key: str, on_query: Callable[[zenoh.Query], None]) -> zenoh.Queryable[None]:
        """Pass each query to `on_query`, in a thread of Zenoh; it replies once, then drops it."""
        return self._session.declare_queryable(key, on_query)

    def call(self, key: str, request: bytes, timeout_s: float) -> bytes:
        """
        Return the reply of the server of a service's key. Raises ServerUnreachable.

        Zenoh answers at once where no server has the key, and also where access control forbids
        it, without saying which.
        """
        what, why = f'{server_of(key)}, {key.rpartition("/")[2]}', 'it does not run'
        try:
            replies = self._session.get(key, payload=request, timeout=timeout_s)
        except zenoh.ZError as error:
            # another thread has closed the link
            raise ServerUnreachable(f'{what}: {first_sentence(error)}') from None
        for reply in replies:
            if reply.ok is not None:
                return reply.ok.payload.to_bytes()
            if (text := refusal_text(reply)) != TIMED_OUT:
                raise ServerUnreachable(f'{what}: {text}')
            why = f'no reply within {timeout_s:g} s: it loads or hangs'
        raise ServerUnreachable(
            f'{what}: {why}, is not reached through '
            f'{", ".join(self.settings.connect) or "zenoh_connect, which is empty"}, or these '
            'keys do not allow it'
        )

    def call_later(
        self,
        key: str,
        request: bytes,
        on_reply: Callable[[bytes], None],
        on_refusal: Callable[[str], None] = lambda _: None,
        timeout_s: float = CALL_LATER_S,
        attachment: bytes = b'',
        traffic: Traffic = Traffic.NOTICE,
    ) -> None:
        """
        Call without waiting for the reply; a thread of Zenoh passes it on, or the refusal, if any.
        A notice that finds the link full is lost and has a refusal after the timeout.
        """

        def pass_on(reply: zenoh.Reply) -> None:
            if reply.ok is not None:
                on_reply(reply.ok.payload.to_bytes())
            else:
                on_refusal(refusal_text(reply))

        self._session.get(
            key,
            pass_on,
            payload=request,
            timeout=timeout_s,
            attachment=attachment or None,
            **_options(traffic),
        )

    def declare_alive(self, key: str) -> zenoh.LivelinessToken:
        """Show others that this process lives, until the token is undeclared or it ends."""
        return self._session.liveliness().declare_token(key)

    def watch_alive(self, key: str, on_presence: OnPresence) -> zenoh.Subscriber[None]:
        """Pass tokens below a key to `on_presence`: those of now, then each that comes or goes."""

        def on_sample(sample: zenoh.Sample) -> None:
            on_presence(str(sample.key_expr), sample.kind == zenoh.SampleKind.PUT)

        return self._session.liveliness().declare_subscriber(key, on_sample, history=True)

    def tokens(self, key: str, timeout_s: float) -> set[str]:
        """Return the tokens below a key that are there now, also those of this process."""
        replies = self._session.liveliness().get(key, timeout=timeout_s)
        return {str(reply.ok.key_expr) for reply in replies if reply.ok is not None}

    def close(self) -> None:
        """Close the session; peers see the tokens go at once. May be called twice."""
        if self._session.is_closed():
            return
        # Zenoh waits ten seconds for a peer that hangs, and over QUIC for a server that has ended
        closing = threading.Thread(target=self._close, name='zenoh_close', daemon=True)
        closing.start()
        closing.join(CLOSE_LIMIT_S)

    def _close(self) -> None:
        # "timed out": such a peer gets no goodbye, and the process ends anyway
        with contextlib.suppress(zenoh.ZError):
            self._session.close()


def forwarded(raw: Outgoing) -> bytes | zenoh.ZBytes:
    """
    Return what to put so that these bytes are sent. A thread that sends what it receives passes
    the payload on, which is not copied and remains where it is in shared memory.
    """
    payload = _receiving.payload
    return payload if payload is not None and raw is _receiving.raw else bytes(raw)


def is_matched(publisher: zenoh.Publisher) -> bool:
    """Return whether a publisher has a subscriber."""
    # the stub of the wheel has another type
    status: Any = publisher.matching_status
    return bool(status.matching)


def _options(traffic: Traffic) -> dict[str, Any]:
    """Return the keyword arguments of Zenoh for one kind of traffic."""
    quality = traffic.value
    control = zenoh.CongestionControl
    return {
        'priority': getattr(zenoh.Priority, quality.priority),
        'congestion_control': control.BLOCK if quality.blocks else control.DROP,
        'express': quality.express,
    }


def first_sentence(error: zenoh.ZError) -> str:
    """Return what Zenoh says, without the places in its source."""
    return str(error).partition(' at ')[0].strip()[:300]


def refusal_text(reply: zenoh.Reply) -> str:
    raw = reply.err.payload.to_bytes() if reply.err else b''
    return raw.decode(errors='replace')[:300] or 'no reply'
