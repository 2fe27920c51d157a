# SPDX-License-Identifier: Apache-2.0
"""
Client of one policy server or router: sessions by service, requests as bytes. Used by edge, router
and benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time
from typing import Any, TypeVar

from msgspec import Struct
from rclpy.client import Client
from rclpy.node import Node
from rclpy.serialization import deserialize_message, serialize_message
from rclpy.task import Future

from lerobot_serve.contract.records import (
    CloseSessionRequest,
    CloseSessionResponse,
    GetStatusRequest,
    GetStatusResponse,
    OpenSessionRequest,
    OpenSessionResponse,
    ResetEpisodeRequest,
    ResetEpisodeResponse,
)
from lerobot_serve.contract.services import messages
from lerobot_serve.contract.services.session import ServerUnreachable
from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.contract.session_messages import message_of
from lerobot_serve_interfaces.msg import Observation
from lerobot_serve_interfaces.srv import CloseSession, GetStatus, OpenSession, ResetEpisode

R = TypeVar('R')
MATCH_POLL_S = 0.005
# discovery time of a new client
DISCOVERY_S = 2.0


class SessionClient:
    """
    The endpoints of one policy server or router. Any thread but the executor's may call; `send`
    any thread.
    """

    def __init__(
        self,
        node: Node,
        server: str,
        *,
        lifespan_s: float,
        stop: threading.Event | None = None,
        for_fleet: bool = False,
        shadow: bool = False,
    ) -> None:
        """
        `for_fleet`: requests of many robots, as in a router; `shadow`: `send_shadow` is used.
        """
        self.server = server
        self._node, self._stop = node, stop
        self._discovery_deadline_s = time.monotonic() + DISCOVERY_S
        create = partial(node.create_client, qos_profile=qos.SERVICES)
        self._open = create(OpenSession, f'{server}/open_session')
        self._count_servers = partial(node.count_services, self._open.srv_name)
        self._close = create(CloseSession, f'{server}/close_session')
        self._reset = create(ResetEpisode, f'{server}/reset_episode')
        self._status = create(GetStatus, f'{server}/get_status')
        # one for each client: a router or a gateway has many
        self._announced: dict[str, Future] = {}
        self._status_future: Future | None = None
        self._requests = node.create_publisher(
            Observation,
            f'{server}/observation',
            qos.observation_writer(lifespan_s, for_fleet=for_fleet),
        )
        self._publishers = [self._requests]
        if shadow:
            self._shadow_requests = node.create_publisher(
                Observation, f'{server}/shadow_observation', qos.SHADOW_OBSERVATION
            )
            self._publishers.append(self._shadow_requests)

    def is_available(self) -> bool:
        """
        Return whether the service is discovered; its server may have just ended. Returns True
        during the discovery time of a new client.
        """
        return self._open.service_is_ready() or time.monotonic() < self._discovery_deadline_s

    def open(self, request: OpenSessionRequest, timeout_s: float) -> OpenSessionResponse:
        """Open a session and return the response. Raises SessionRefused and ServerUnreachable."""
        # idempotent: repeating a request opens no second session
        known = {'idempotent': True, 'count_servers': self._count_servers}
        reply = self._call(self._open, request, OpenSessionResponse, timeout_s, **known)
        return messages.check_accepted(self.server, reply)

    def close(self, request: OpenSessionRequest, timeout_s: float) -> CloseSessionResponse:
        """Close a session. Raises ServerUnreachable."""
        self._forget_announced(request.client_id)
        closing = CloseSessionRequest(request.client_id, request.session_epoch)
        return self._call(self._close, closing, CloseSessionResponse, timeout_s, idempotent=True)

    def reset(self, request: ResetEpisodeRequest, timeout_s: float) -> ResetEpisodeResponse:
        """Begin the next episode. Raises ServerUnreachable."""
        return self._call(self._reset, request, ResetEpisodeResponse, timeout_s)

    def announce(self, request: ResetEpisodeRequest, on_refusal: Callable[[str], None]) -> None:
        """
        Announce the next episode without waiting, since a lost server would delay the first
        action; the first request of the episode carries the same flag. The executor calls
        `on_refusal`.
        """
        self._forget_announced(request.client_id)
        if self._reset.service_is_ready():
            future = self._reset.call_async(message_of(request, ResetEpisode.Request))
            self._announced[request.client_id] = future
            future.add_done_callback(partial(_report_refusal, on_refusal))

    def _forget_announced(self, client_id: str) -> None:
        """Remove the last announcement; one without a response must not stay pending forever."""
        if pending := self._announced.pop(client_id, None):
            self._reset.remove_pending_request(pending)

    def probe(self, on_reply: Callable[[], None]) -> None:
        """
        Request the status without waiting; the executor calls `on_reply`. A new request cancels
        the previous one.
        """
        self._cancel_status_request()
        if self._status.service_is_ready():
            self._status_future = self._status.call_async(GetStatus.Request())
            self._status_future.add_done_callback(lambda _: on_reply())

    def _cancel_status_request(self) -> None:
        """Cancel the pending status request, which would otherwise stay pending forever."""
        if self._status_future:
            self._status.remove_pending_request(self._status_future)
            self._status_future = None

    def status(self, timeout_s: float) -> GetStatusResponse:
        """Return the status of the server. Raises ServerUnreachable."""
        request = GetStatusRequest()
        return self._call(self._status, request, GetStatusResponse, timeout_s, idempotent=True)

    def wait_until_matched(self, publisher_count: Callable[[], int], timeout_s: float) -> bool:
        """
        Wait until request and reply topics are matched; return False after the timeout.

        A service is available before the topics of its server are matched; messages sent until
        then are lost.
        """
        deadline = time.monotonic() + timeout_s
        while not (self._are_read() and publisher_count()):
            if time.monotonic() > deadline or (self._stop and self._stop.is_set()):
                return False
            time.sleep(MATCH_POLL_S)
        return True

    def _are_read(self) -> bool:
        return all(publisher.get_subscription_count() for publisher in self._publishers)

    def send(self, raw: bytes) -> None:
        """Publish the bytes of an Observation."""
        self._requests.publish(raw)

    def send_shadow(self, raw: bytes) -> None:
        """Publish the bytes of an Observation, best effort: it may be lost and never blocks."""
        self._shadow_requests.publish(raw)

    def destroy_endpoints(self) -> None:
        """Destroy the clients and publishers; call it once no thread uses them."""
        for client in (self._open, self._close, self._reset, self._status):
            self._node.destroy_client(client)
        for publisher in self._publishers:
            self._node.destroy_publisher(publisher)

    def _call(
        self, client: Client, request: Struct, kind: type[R], timeout_s: float, **more: Any
    ) -> R:
        message = deserialize_message(messages.encode_request(request), client.srv_type.Request)
        try:
            reply = call_service(client, message, timeout_s, self._stop, **more)
        except ServiceCallFailed as error:
            raise ServerUnreachable(str(error)) from None
        return messages.read_response(kind, bytes(serialize_message(reply)), client.srv_name)


def _report_refusal(on_refusal: Callable[[str], None], completed: Future) -> None:
    """Report a refused request; a server that ended returns no result. Executor thread."""
    response = completed.result() if completed.exception() is None else None
    if response and not response.acknowledged:
        on_refusal(response.text)
