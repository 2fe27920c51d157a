# SPDX-License-Identifier: Apache-2.0
"""
The replicas of a router over both links. Over ROS 2 each server replies on a separate topic, which
identifies it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
import queue
import threading
from typing import ParamSpec, TYPE_CHECKING

from rclpy.exceptions import InvalidHandle
from rclpy.node import Node
from rclpy.subscription import Subscription

from lerobot_serve.contract.names import is_over_zenoh, node_name, ros_token
from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.contract.services.messages import read, SAME_VERSION
from lerobot_serve.links.link import LinkCallbacks, Presence
from lerobot_serve.links.ros.node_links import NodeLinks
from lerobot_serve.parameters import ParameterError
from lerobot_serve.ros import qos
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.zenoh.keys import Role, ServerKeys
from lerobot_serve_interfaces.msg import ServerStatus as ServerStatusMessage

if TYPE_CHECKING:
    import zenoh

    from lerobot_serve.zenoh.link import ZenohLink

P = ParamSpec('P')
MALFORMED_STATUS = 'malformed_status'
OnReply = Callable[[str, bytes], None]
OnStatus = Callable[[str, ServerStatus], None]


def check_link(link: ZenohLink | None, server: str) -> None:
    """Raise ParameterError for a server over Zenoh without a link."""
    if is_over_zenoh(server) and link is None:
        raise ParameterError(
            f'{server} is reached over Zenoh, and zenoh_connect is empty; set it to the endpoints '
            'of the servers or of a Zenoh router, such as tcp/192.168.1.5:7447'
        )


def one_by_one(lock: threading.Lock, deliver: Callable[P, None]) -> Callable[P, None]:
    """Return `deliver` for replies of all links, which arrive in threads of their own."""

    def deliver_alone(*reply: P.args, **named: P.kwargs) -> None:
        with lock:
            deliver(*reply, **named)

    return deliver_alone


class InOrder:
    """
    Runs functions as tasks of an executor, in order, which its tasks have not: the newest status
    of a server counts. Any thread.
    """

    def __init__(self, create_task: Callable[[Callable[[], None]], object]) -> None:
        self._create_task = create_task
        self._waiting: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def __call__(self, work: Callable[[], None]) -> None:
        self._waiting.put(work)
        self._create_task(lambda: self._waiting.get()())


class ReplicaLinks:
    """
    Created and closed by the thread of a transition; `run` is the body of a thread, which delivers
    replies over ROS 2. Statuses arrive in the executor.
    """

    def __init__(
        self,
        node: Node,
        parameters: RouterParameters,
        link: ZenohLink | None,
        *,
        on_drop: Callable[[str], None],
        stop: threading.Event,
    ) -> None:
        """Raises ParameterError for a replica over Zenoh without `link`."""
        self._node, self._link, self._on_drop = node, link, on_drop
        for server in parameters.servers:
            check_link(link, server)
        self._links = NodeLinks(
            node,
            Role.ROUTER,
            node.get_fully_qualified_name(),
            parameters,
            lifespan_s=parameters.observation_lifespan_s,
            stop=stop,
            zenoh=link,
            on_drop=on_drop,
        )
        for server in parameters.servers:
            topic = f'~/replies/{ros_token(server)}'
            self._links.add(server, topic, over_zenoh=is_over_zenoh(server))
        self.clients, self.links = self._links.clients, self._links.links
        self.run, self.wake = self._links.run, self._links.wake
        # servers that were killed, stopped or cut off, as their links know it
        self._silent: set[str] = set()
        # server -> why its last status over Zenoh could not be read
        self._unreadable: dict[str, str] = {}
        self._run_in_executor = InOrder(node.executor.create_task)
        self._subscriptions: list[Subscription] = []
        self._subscribers: list[zenoh.Subscriber[None]] = []

    def listen(self, on_reply: OnReply, on_status: OnStatus) -> None:
        """Subscribe to replies and status of all servers, before `run`."""
        deliver = one_by_one(threading.Lock(), on_reply)
        self._links.listen(
            lambda server: LinkCallbacks(
                partial(deliver, server), on_presence=partial(self._on_presence, server)
            )
        )
        for server in self.clients:
            if is_over_zenoh(server):
                self._watch_over_zenoh(server, partial(on_status, server))
            else:
                subscription = self._node.create_subscription(
                    ServerStatusMessage,
                    f'{server}/status',
                    partial(self._on_status, server, partial(on_status, server)),
                    qos.STATE,
                    raw=True,
                )
                self._subscriptions.append(subscription)

    def _on_presence(self, server: str, presence: Presence) -> None:
        is_silent = presence in (Presence.EXPIRED, Presence.GONE)
        (self._silent.add if is_silent else self._silent.discard)(server)

    def _watch_over_zenoh(self, server: str, on_status: Callable[[ServerStatus], None]) -> None:
        assert self._link
        key = ServerKeys(self._link.settings.site, node_name(server)).status

        def in_executor(status: ServerStatus) -> None:
            self._run_in_executor(partial(on_status, status))

        def on_payload(_: str, raw: bytes) -> None:
            self._on_status(server, in_executor, raw)

        self._subscribers.append(self._link.subscribe(key, on_payload))

    def _on_status(
        self, server: str, on_status: Callable[[ServerStatus], None], raw: bytes
    ) -> None:
        try:
            status = read(ServerStatus, raw)
        except ValueError as error:
            self._on_drop(MALFORMED_STATUS)
            if is_over_zenoh(server):
                self._unreadable[server] = f'its status cannot be read ({error}); {SAME_VERSION}'
            return
        self._unreadable.pop(server, None)
        self._silent.discard(server)
        on_status(status)

    def is_silent(self, server: str) -> bool:
        """Return whether a server was killed, stopped or cut off."""
        return server in self._silent

    def is_available(self, server: str) -> bool:
        """Return whether a server offers its services and is not silent; False after `close`."""
        try:
            return self.clients[server].is_available() and not self.is_silent(server)
        except InvalidHandle:
            return False

    def link_problem(self, server: str) -> str:
        """Return why Zenoh cannot use a server, with the remedy; empty when it can."""
        return self.clients[server].conflict or self._unreadable.get(server, '')

    def close(self) -> None:
        """Close all endpoints; `run` has returned."""
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        for subscriber in self._subscribers:
            subscriber.undeclare()
        self._links.close()
