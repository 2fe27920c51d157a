# SPDX-License-Identifier: Apache-2.0
"""What is said on one connection: metadata first, then a reply to each observation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lerobot_serve.gateway.callers.caller import Caller, NO_CAGE
from lerobot_serve.gateway.callers.predictions import invalid, Prediction, PredictionError
from lerobot_serve.gateway.core import Gateway
from lerobot_serve.gateway.openpi.connection import Connection
from lerobot_serve.gateway.openpi.frames import Opcode
from lerobot_serve.gateway.openpi.observation import (
    Observation,
    ObservationMapping,
    request_of,
    RESET,
    sorted_observation,
)
from lerobot_serve.gateway.upstream import PolicyContract, UpstreamSession
from lerobot_serve.peer_formats.array_types import PeerFormatError
from lerobot_serve.peer_formats.msgpack_arrays import pack_openpi, unpack_openpi

OURS = 'lerobot_serve'
RESET_DONE = 'reset successful'
Columns = Mapping[str, list[int]]


class Conversation:
    """One caller of the door. The event loop owns it."""

    def __init__(
        self,
        gateway: Gateway,
        caller: Caller,
        mapping: ObservationMapping,
        clock: Callable[[], float],
    ) -> None:
        self._gateway, self._caller, self._mapping = gateway, caller, mapping
        self._clock, self._previous_ms = clock, 0.0
        self._episodes = Episodes(by_task=mapping.form.new_episode == 'task')

    async def begin(self) -> None:
        """
        Open the session of the caller. Raises PredictionError, also where the mapping does not fit
        the policy; then none is left.
        """
        gateway, caller = self._gateway, self._caller
        try:
            session = await gateway.session(caller)
        except BaseException:
            # the client left, or its session opens too slowly: its next connection is another
            # caller
            gateway.begin_release(caller)
            raise
        try:
            self._use(session.contract)
        except PredictionError as error:
            await gateway.release(caller)
            gateway.on_refused(caller.protocol, error.status)
            raise

    def _use(self, contract: PolicyContract) -> None:
        self._columns: Columns = self._mapping.names.action_columns(contract)
        self._contract = contract

    async def run(self, connection: Connection) -> None:
        """Converse until the connection ends, with ConnectionClosed."""
        first = metadata_frame(self._contract, self._mapping.form.metadata)
        await connection.send(Opcode.BINARY, first)
        while True:
            data, opcode = await connection.next_message()
            begin_s = self._clock()
            await connection.send(*await self._answer(data, opcode, begin_s))
            self._previous_ms = 1e3 * (self._clock() - begin_s)

    async def _answer(
        self, data: memoryview, opcode: Opcode, begin_s: float
    ) -> tuple[Opcode, bytes]:
        """Return the reply to one message."""
        try:
            found = self._read(data, opcode)
        except PredictionError as error:
            self._gateway.on_refused(self._caller.protocol, 'malformed')
            return Opcode.TEXT, error_text(error).encode()
        if found.endpoint == RESET:
            self._episodes.on_reset()
            return Opcode.TEXT, RESET_DONE.encode()
        try:
            return Opcode.BINARY, await self._predict(found, begin_s)
        except PredictionError as error:
            return Opcode.TEXT, error_text(error).encode()

    def _read(self, data: memoryview, opcode: Opcode) -> Observation:
        if opcode != Opcode.BINARY:
            raise invalid('an observation is a binary message of msgpack, got text')
        try:
            message = unpack_openpi(data)
        except PeerFormatError as error:
            raise invalid(f'the message cannot be read: {error}') from None
        return sorted_observation(message, self._mapping.form.task_key)

    async def _predict(self, found: Observation, begin_s: float) -> bytes:
        """Return the frame of a prediction. Raises PredictionError."""
        session = await self._gateway.session(self._caller)
        self._mapping = self._mapping.for_state(found.state, self._contract)
        self._follow(session)
        request = request_of(
            found,
            self._mapping,
            self._contract,
            episode_start=self._episodes.is_start(found),
        )
        prediction = await session.predict(request)
        self._episodes.on_predicted(found)
        # the columns are those of the policy that predicted
        self._follow(session)
        timing = {'gateway_ms': 1e3 * (self._clock() - begin_s)}
        if self._previous_ms:
            timing['prev_total_ms'] = self._previous_ms
        return reply_frame(prediction, self._columns, timing)

    def _follow(self, session: UpstreamSession) -> None:
        """
        Take over the contract of a session that was opened again. Raises PredictionError, also for
        an order of names that the client has not read.
        """
        if session.contract is not self._contract:
            self._mapping.names.check_change(self._contract, session.contract)
            self._use(session.contract)


class Episodes:
    """
    The episodes of one connection, whose wire does not say where one begins. A new one begins with
    the first request, after a reset, with another session_id, and where `by_task` is set with
    another instruction.
    """

    def __init__(self, *, by_task: bool) -> None:
        self._by_task = by_task
        self._is_new, self._task, self._episode_id = True, '', ''

    def on_reset(self) -> None:
        """Let the next request begin an episode."""
        self._is_new = True

    def is_start(self, found: Observation) -> bool:
        """Return whether this request begins an episode."""
        is_other = found.episode_id != self._episode_id
        is_other |= self._by_task and found.task != self._task
        return self._is_new or is_other

    def on_predicted(self, found: Observation) -> None:
        """Continue the episode of a request; one that failed leaves its start to the next one."""
        self._is_new, self._task, self._episode_id = False, found.task, found.episode_id


def metadata_frame(contract: PolicyContract, more: Mapping[str, Any]) -> bytes:
    """Return the first message of a connection."""
    ours = {
        'note': NO_CAGE,
        'policy': contract.policy,
        'fingerprint': contract.fingerprint,
        'state_names': contract.state_names,
        'action_names': contract.action_names,
        'cameras': {name: list(shape) for name, shape in contract.cameras.items()},
        'chunk_steps': contract.chunk_steps,
        'control_hz': contract.control_hz,
    }
    return pack_openpi({**more, OURS: ours})


def reply_frame(prediction: Prediction, columns: Columns, timing: Mapping[str, float]) -> bytes:
    """
    Return the reply to an observation. Only actions are arrays: openpi's ActionChunkBroker cuts
    every array of a reply into steps. `timing` has times of the gateway [ms].
    """
    actions = {key: prediction.actions[:, at] for key, at in columns.items()}
    ours = prediction.as_reply()
    server = {'infer_ms': ours.pop('inference_ms'), 'queue_wait_ms': ours.pop('queue_wait_ms')}
    return pack_openpi(
        {
            **actions,
            'server_timing': {**server, **timing},
            'policy_timing': {'infer_ms': server['infer_ms']},
            OURS: ours,
        }
    )


def error_text(error: PredictionError) -> str:
    """Return the text frame of a refusal; openpi's client raises it as RuntimeError."""
    retry = f'; retry after {error.retry_after_s:g} s' if error.retry_after_s else ''
    return f'{error.status}: {error.text}{retry}'
