# SPDX-License-Identifier: Apache-2.0
"""
The interface of a protocol: connect to a server, ask it for a chunk, close. All of it runs on the
event loop of the thread `remote peer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from lerobot_serve.arrays import Float32Array, FrameArray
from lerobot_serve.policies.base import PolicyError


class PeerError(PolicyError):
    """The remote server did not give a usable reply; the text names its address."""


class PeerUnavailable(PeerError):
    """There is no connection, or it broke; the connection is opened again in the background."""


class PeerTimeout(PeerUnavailable):
    """The remote server did not reply in time."""


class PeerRefused(PeerError):
    """The remote server replied with an error; the connection stays open."""


class BadReply(PeerError):
    """The reply is over a limit, cannot be decoded, or has another shape than the contract."""


class PeerChanged(PeerError):
    """The metadata of the remote server contradicts the contract, or is no longer the same."""


@dataclass(frozen=True, slots=True, eq=False)
class PeerObservation:
    """The newest observation of a request, in the names of the contract."""

    state: Float32Array
    images: Mapping[str, FrameArray]
    task: str = ''
    episode_id: str = ''


@dataclass(frozen=True, slots=True, eq=False)
class PeerReply:
    """The actions, steps x actions; `forward_ms` is the inference time that the server reports."""

    actions: NDArray[Any]
    forward_ms: float | None = None


class Peer(Protocol):
    """
    One connection; used once. Every method raises PeerError, and is cancelled at its timeout.
    """

    async def connect(self) -> dict[str, Any]:
        """Open the connection and return what the server says of its policy; may be empty."""

    async def predict(self, observation: PeerObservation) -> PeerReply:
        """Return the chunk of one observation."""

    async def close(self) -> None:
        """Close the connection; also after a failed or cancelled `connect`."""


# receives the callback for a connection that the server closes while nobody waits for a reply
MakePeer = Callable[[Callable[[str], None]], Peer]
