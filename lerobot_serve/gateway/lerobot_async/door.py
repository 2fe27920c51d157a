# SPDX-License-Identifier: Apache-2.0
"""
The door for LeRobot's RobotClient: the four methods of `transport.AsyncInference`, on raw bytes,
behind a gRPC server. The event loop owns it.

Every refusal is counted, ends the call with a status and a sentence, and never has a traceback.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterator
import contextlib
import time

import grpc

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller, host_of, NO_CAGE
from lerobot_serve.gateway.callers.mapping import read_mapping
from lerobot_serve.gateway.callers.predictions import invalid, PredictionError, Status
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.door_parameters import EndpointSettings
from lerobot_serve.gateway.grpc_server.contexts import (
    address_of,
    caller_of,
    Context,
    NOTE,
    prediction_metadata,
)
from lerobot_serve.gateway.grpc_server.server import GrpcServer
from lerobot_serve.gateway.lerobot_async.agreement import agree
from lerobot_serve.gateway.lerobot_async.clients import Clients, RobotClient
from lerobot_serve.peer_formats.array_types import PeerFormatError
from lerobot_serve.peer_formats.lerobot_messages import (
    read_data,
    read_piece,
    TransferState,
    write_data,
)
from lerobot_serve.peer_formats.safe_pickle import (
    Limits,
    PickleRefused,
    read_observation,
    read_policy_config,
    TimedObservation,
)

# GetActions, SendObservations and one that is about to end, for each client
CALLS_PER_CLIENT = 3
# GetActions answers empty after it, as LeRobot's server does
OBSERVATION_WAIT_S = 2.0
# longest time from the first to the last piece of an observation
OBSERVATION_LIMIT_S = 10.0
# a client without a session calls again at once: its refusal waits
REFUSAL_PAUSE_S = 0.5
SERVICE = 'transport.AsyncInference'
EMPTY = b''
# the client waits for the next observation, and asks again
NO_CHUNK = frozenset({Status.TOO_LATE, Status.SUPERSEDED})
LOGGED = {Status.INVALID, Status.OVERLOADED, Status.QUOTA, Status.UNAVAILABLE}


class LeRobotDoor(GrpcServer):
    """See the module."""

    def __init__(
        self,
        gateway: Gateway,
        exposure: Exposure,
        settings: EndpointSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Raise UserError for a mapping that cannot be read."""
        self._clock, self._mapping = clock, read_mapping(settings.mapping)
        self.clients = Clients(gateway.settings.max_callers, clock=clock)
        self._limits = Limits(pickle_bytes=settings.max_message_bytes)
        self._leaving: set[asyncio.Task[None]] = set()
        unary = grpc.unary_unary_rpc_method_handler
        methods = {
            'Ready': unary(self.ready),
            'SendPolicyInstructions': unary(self.send_policy_instructions),
            'SendObservations': grpc.stream_unary_rpc_method_handler(self.send_observations),
            'GetActions': unary(self.get_actions),
        }
        super().__init__(
            gateway, exposure, settings, SERVICE, methods, calls_per_caller=CALLS_PER_CLIENT
        )

    def _note_error(self, context: Context, error: PredictionError) -> None:
        """Count and log a refused client; a RobotClient shows its user only a status."""
        super()._note_error(context, error)
        if error.status in LOGGED:
            address = address_of(context.peer())
            self._gateway.warn_throttled(
                (self._exposure.door, error.status, host_of(address)),
                f'robot client at {address} is refused ({error.status}): {error.text}',
            )

    async def ready(self, message: bytes, context: Context) -> bytes:
        """Begin: what the connection had before is forgotten. Raises PredictionError."""
        caller = caller_of(context, self._exposure)
        await self._gateway.describe()
        self.clients.forget(caller)
        await self._gateway.release(caller)
        await context.send_initial_metadata(NOTE)
        return EMPTY

    async def send_policy_instructions(self, message: bytes, context: Context) -> bytes:
        """Agree on the policy. Raises PredictionError."""
        caller = caller_of(context, self._exposure)
        with readable():
            asked = read_policy_config(read_data(message))
        contract = await self._gateway.describe()
        agreement = agree(asked, contract, self._settings, self._mapping)
        self.clients.add(RobotClient(caller, agreement, clock=self._clock))
        self._gateway.log.info(
            f'{caller.client_id}: robot client with {", ".join(agreement.state_names)} gets '
            f'{asked.actions_per_chunk} actions per chunk of '
            f'{agreement.contract.policy}; policy_type and policy_device of the client have no '
            f'effect; {NO_CAGE}'
        )
        return EMPTY

    async def send_observations(self, pieces: AsyncIterator[bytes], context: Context) -> bytes:
        """Keep an observation for GetActions. Raises PredictionError."""
        with self.clients.calling(caller_of(context, self._exposure)) as client:
            if client.is_receiving:
                raise PredictionError(
                    Status.OVERLOADED, 'another observation of this client is still being sent'
                )
            client.is_receiving = True
            try:
                dropped = client.observe(await self._read(pieces))
            finally:
                client.is_receiving = False
        if dropped:
            self._on_refused(dropped)
        return EMPTY

    async def _read(self, pieces: AsyncIterator[bytes]) -> TimedObservation:
        with readable():
            try:
                async with asyncio.timeout(OBSERVATION_LIMIT_S):
                    data = await joined(pieces, self._settings.max_message_bytes)
            except TimeoutError:
                raise PeerFormatError(
                    f'the observation was not complete within {OBSERVATION_LIMIT_S:g} s'
                ) from None
            return read_observation(data, self._limits)

    async def get_actions(self, message: bytes, context: Context) -> bytes:
        """
        Return the chunk of the newest observation; empty when none comes. Raises PredictionError.
        """
        caller = caller_of(context, self._exposure)
        try:
            with self.clients.calling(caller) as client:
                chunk = await client.chunk(self._gateway, OBSERVATION_WAIT_S)
        except asyncio.CancelledError:
            self._leave(caller)
            raise
        except PredictionError as error:
            if error.status in NO_CHUNK:
                return EMPTY
            if error.status is Status.INVALID:
                # the client asks again at once
                await asyncio.sleep(REFUSAL_PAUSE_S)
            raise
        if chunk is None:
            return EMPTY
        context.set_trailing_metadata(prediction_metadata(chunk[1]))
        return write_data(chunk[0])

    def _leave(self, caller: Caller) -> None:
        """Free the place of a client whose connection ended; one that continues opens it again."""
        task = asyncio.get_running_loop().create_task(self._gateway.release(caller))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


@contextlib.contextmanager
def readable() -> Iterator[None]:
    """Refuse what cannot be read: PredictionError (INVALID)."""
    try:
        yield
    except PickleRefused as refused:
        raise invalid(str(refused)) from None
    except PeerFormatError as refused:
        raise invalid(f'the message is refused: {refused}') from None


async def joined(pieces: AsyncIterable[bytes], most_bytes: int) -> memoryview:
    """
    Return the bytes of an observation. Raises PeerFormatError for one that is too large or has no
    end.
    """
    parts: list[memoryview] = []
    size = 0
    async for message in pieces:
        piece = read_piece(message)
        if piece.state is TransferState.UNKNOWN:
            raise PeerFormatError('transfer_state is missing')
        if piece.state is TransferState.BEGIN:
            parts, size = [], 0
        parts.append(piece.data)
        size += len(piece.data)
        if size > most_bytes:
            raise PeerFormatError(
                f'the observation has more than {most_bytes} bytes; send smaller images, or raise '
                'lerobot.max_message_mb'
            )
        if piece.state is TransferState.END:
            # one piece is not copied
            return parts[0] if len(parts) == 1 else memoryview(b''.join(parts))
    raise PeerFormatError('the observation has no end: no piece with TRANSFER_END came')
