# SPDX-License-Identifier: Apache-2.0
"""What the node gives a router: parameters, and what it reaches others through. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lerobot_serve.router.api.messages import RouterMessage
from lerobot_serve.router.data_path.request_observer import RequestObserver
from lerobot_serve.router.data_path.transport import Transport
from lerobot_serve.router.monitoring.trace_recorder import RouterTraceRecorder
from lerobot_serve.router.parameters import RouterParameters
from lerobot_serve.router.sessions.call_pool import ReplicaClient
from lerobot_serve.router.shadow.sessions import ShadowClient


@dataclass(frozen=True, slots=True)
class ParameterSource:
    """
    `current` are the parameters of now, `given` those of file and command line; `set_split`
    changes the parameter split_percent.
    """

    current: RouterParameters
    given: RouterParameters
    set_split: Callable[[int], None]


class ShadowLinks(Protocol):
    """Clients of the policy in shadow and, for second draws, of all replicas."""

    @property
    def shadow(self) -> ShadowClient: ...

    @property
    def again(self) -> Mapping[str, ShadowClient]: ...


@dataclass(frozen=True, slots=True)
class RouterLinks:
    """
    What a router reaches others through. `publish` sends a message to operators; `observers`
    see all requests, behind those that the router has itself.
    """

    clients: Mapping[str, ReplicaClient]
    transport: Transport
    publish: Callable[[RouterMessage], None]
    shadow: ShadowLinks | None = None
    recorder: RouterTraceRecorder | None = None
    observers: tuple[RequestObserver, ...] = ()
