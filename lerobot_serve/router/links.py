# SPDX-License-Identifier: Apache-2.0
"""The arguments of a RouterCore from its node: parameters, clients and publishers. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
import threading
from typing import Protocol

from lerobot_serve.contract.records import ServerStatus
from lerobot_serve.links.server_client import ServerClient
from lerobot_serve.router.api.messages import RouterMessage
from lerobot_serve.router.data_path.replica_transport import ReplicaTransport
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.monitoring.trace_recorder import RouterTraceRecorder
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.shadow.sessions import ShadowClient


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """
    `current` are the current parameters, `given` those of file and command line; `set_own` sets
    parameters by field, all or none. It raises ParameterError.
    """

    current: RouterParameters
    given: RouterParameters
    set_own: Callable[..., None]


class ReplicaConnections(Protocol):
    """The clients of all replicas and their replies; see ros.replica_links."""

    def listen(
        self,
        on_reply: Callable[[str, bytes], None],
        on_status: Callable[[str, ServerStatus], None],
    ) -> None: ...

    def run(self, stop: threading.Event) -> None: ...

    def wake(self) -> None: ...

    def is_available(self, server: str) -> bool: ...

    def link_problem(self, server: str) -> str: ...

    def close(self) -> None: ...


class ShadowLinks(Protocol):
    """
    The clients of the policy in shadow and, for second draws, of all replicas, and their replies;
    see ros.shadow_links.
    """

    @property
    def shadow(self) -> ShadowClient: ...

    @property
    def second_draws(self) -> Mapping[str, ShadowClient]: ...

    def listen(
        self, on_chunk: Callable[[bytes], None], on_second_draw: Callable[[bytes], None]
    ) -> None: ...

    def run(self, stop: threading.Event) -> None: ...

    def wake(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class RouterLinks:
    """
    The connections of a router. `publish` sends a message to operators; `observers` are called
    after the observers of the router.
    """

    clients: Mapping[str, ServerClient]
    transport: ReplicaTransport
    publish: Callable[[RouterMessage], None]
    shadow: ShadowLinks | None = None
    recorder: RouterTraceRecorder | None = None
    observers: tuple[RequestObserver, ...] = ()
