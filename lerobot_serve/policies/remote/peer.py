# SPDX-License-Identifier: Apache-2.0
"""
The interface of a protocol: connect to a server, ask it for a chunk, close. All of it runs on the
event loop of the thread `remote peer`. Texts of errors lack the address, which `named` adds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
import contextlib
from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from lerobot_serve.arrays import Float32Array, FrameArray
from lerobot_serve.peer_formats.array_types import PeerFormatError
from lerobot_serve.policies.base import PolicyError
from lerobot_serve.policies.remote.contract_file import MappedContractFile, RemoteContract

# of a text of a server
SHOWN_CHARACTERS = 300


class PeerError(PolicyError):
    """The remote server did not give a usable reply."""


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


class Peer:
    """
    One connection of a protocol; used once. Its coroutines raise PeerError, PeerFormatError and
    OSError, and are cancelled at their timeout.

    kind           of the policy
    schemes        of the address: plain, and with TLS; '' without TLS
    contract_file  has the fields of the contract file of this protocol
    image_prefix   before the name of a camera, its key where the file has none
    """

    kind: ClassVar[str]
    schemes: ClassVar[tuple[str, str]]
    contract_file: ClassVar[type[RemoteContract]] = MappedContractFile
    image_prefix: ClassVar[str] = ''

    def __init__(self, contract: RemoteContract, on_lost: Callable[[str], None]) -> None:
        """
        `on_lost` receives why a connection has ended that the server closes while nobody waits for
        a reply. Nothing is opened before `connect`.
        """
        self._contract, self._on_lost = contract, on_lost

    @staticmethod
    def check(contract: RemoteContract) -> None:
        """Raise PolicyError for a field that this protocol needs or cannot use; any thread."""

    @staticmethod
    def check_metadata(metadata: dict[str, Any], contract: RemoteContract) -> None:
        """Raise PeerChanged for metadata that contradict the contract file; any thread."""

    async def connect(self) -> dict[str, Any]:
        """Open the connection and return what the server says of its policy; may be empty."""
        raise NotImplementedError

    async def predict(self, observation: PeerObservation) -> PeerReply:
        """Return the chunk of one observation."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the connection; also after a failed or cancelled `connect`."""
        raise NotImplementedError

    @property
    def _too_large(self) -> str:
        return f'the reply is over max_reply_mb ({self._contract.max_reply_mb} MB)'


# receives `on_lost`
MakePeer = Callable[[Callable[[str], None]], Peer]


@contextlib.contextmanager
def named(where: str) -> Iterator[None]:
    """Put the address of the server before the text of an error, which becomes a PeerError."""
    try:
        yield
    except PeerError as error:
        raise type(error)(f'{where}: {error}') from None
    except PeerFormatError as error:
        raise BadReply(f'{where}: {error}') from None
    except TimeoutError:
        raise
    except OSError as error:
        raise PeerUnavailable(f'{where}: {error}') from None
