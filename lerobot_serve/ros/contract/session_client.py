"""
The client's half of the contract: sessions by service, requests as bytes. Used by edge, router and
bench.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import threading
import time
from typing import Any

from rclpy.node import Node
from rclpy.task import Future

from lerobot_serve.ros import qos
from lerobot_serve.ros.contract.service_call import call_service, ServiceCallFailed
from lerobot_serve.ros.contract.session_messages import message_from_session_request
from lerobot_serve.wire.schema import Refusal
from lerobot_serve.wire.session import ServerUnreachable, SessionRefused, SessionRequest
from lerobot_serve_interfaces.msg import Observation
from lerobot_serve_interfaces.srv import CloseSession, GetStatus, OpenSession, ResetEpisode

MATCH_POLL_S = 0.005
# by then a new client has found who is there
DISCOVERY_S = 2.0


class SessionClient:
    """
    Talks to one policy server or router. Any thread but the executor's may call; `send` any
    thread.
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
        `for_fleet` robots, as a router's, instead of one; `shadow` where `send_shadow` is needed.
        """
        self.server = server
        self._node, self._stop = node, stop
        self._found_by = time.monotonic() + DISCOVERY_S
        create = partial(node.create_client, qos_profile=qos.SERVICES)
        self._open = create(OpenSession, f'{server}/open_session')
        self._offers = partial(node.count_services, self._open.srv_name)
        self._close = create(CloseSession, f'{server}/close_session')
        self._reset = create(ResetEpisode, f'{server}/reset_episode')
        self._status = create(GetStatus, f'{server}/get_status')
        self._announced: Future | None = None
        self._probed: Future | None = None
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

    def is_there(self) -> bool:
        """
        Return whether the service is found; it may have just gone. A client that is new says yes:
        it has not found everybody yet.
        """
        return self._open.service_is_ready() or time.monotonic() < self._found_by

    def open(self, ask: SessionRequest, timeout_s: float) -> OpenSession.Response:
        """Return the reply of an open session. Raises Refused and Unreachable."""
        # the same ask twice opens one session
        reply = self._call(
            self._open, message_from_session_request(ask), timeout_s, offers=self._offers
        )
        if not reply.accepted:
            known = reply.code in tuple(Refusal)
            raise SessionRefused(Refusal(reply.code) if known else Refusal.NOT_READY, reply.reason)
        return reply

    def close(self, ask: SessionRequest, timeout_s: float) -> CloseSession.Response:
        """End a session. Raises Unreachable."""
        request = CloseSession.Request(client_id=ask.client_id, session_epoch=ask.session_epoch)
        return self._call(self._close, request, timeout_s)

    def reset(self, request: ResetEpisode.Request, timeout_s: float) -> ResetEpisode.Response:
        """Begin the next episode. Raises Unreachable."""
        return self._call(self._reset, request, timeout_s)

    def announce(self, request: ResetEpisode.Request, on_refusal: Callable[[str], None]) -> None:
        """
        Say that the next episode begins and wait for nothing: who is dead would cost the robot its
        first action, and the episode's first request says the same. `on_refusal` is called by the
        executor.
        """
        if self._announced:
            # what nobody answered is not kept for ever
            self._reset.remove_pending_request(self._announced)
            self._announced = None
        if self._reset.service_is_ready():
            self._announced = self._reset.call_async(request)
            self._announced.add_done_callback(partial(_tell_refusal, on_refusal))

    def probe(self, on_answer: Callable[[], None]) -> None:
        """
        Ask for a sign of life and wait for nothing; `on_answer` is called by the executor. One
        question at a time: what was asked before is not waited for any more.
        """
        self._cancel_status_request()
        if self._status.service_is_ready():
            self._probed = self._status.call_async(GetStatus.Request())
            self._probed.add_done_callback(lambda _: on_answer())

    def _cancel_status_request(self) -> None:
        """What nobody answered is not kept for ever."""
        if self._probed:
            self._status.remove_pending_request(self._probed)
            self._probed = None

    def status(self, timeout_s: float) -> GetStatus.Response:
        """Return what is served and how it is doing. Raises Unreachable."""
        return self._call(self._status, GetStatus.Request(), timeout_s)

    def wait_until_matched(self, publisher_count: Callable[[], int], timeout_s: float) -> bool:
        """
        Wait until requests and answers have somebody at the other end; False when that took too
        long.

        A service answers before its server's topics are found; what is sent by then is lost.
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
        """Publish the bytes of an Observation that may be lost, and slows nobody down."""
        self._shadow_requests.publish(raw)

    def destroy_endpoints(self) -> None:
        """Destroy all that was created on the node; once nobody uses it any more."""
        for client in (self._open, self._close, self._reset, self._status):
            self._node.destroy_client(client)
        for publisher in self._publishers:
            self._node.destroy_publisher(publisher)

    def _call(self, client: Any, request: Any, timeout_s: float, **more: Any) -> Any:
        try:
            return call_service(client, request, timeout_s, self._stop, **more)
        except ServiceCallFailed as error:
            raise ServerUnreachable(str(error)) from None


def _tell_refusal(on_refusal: Callable[[str], None], answered: Future) -> None:
    """Executor thread; who does not answer any more has no result."""
    response = answered.result() if answered.exception() is None else None
    if response and not response.acknowledged:
        on_refusal(response.text)
