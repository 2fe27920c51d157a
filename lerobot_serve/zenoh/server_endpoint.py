# SPDX-License-Identifier: Apache-2.0
"""
A policy server or router as Zenoh sees it: its services, what it receives, and its presence.

Built by the thread that builds the node. A thread of Zenoh passes observations on; services run
where `run` runs them, which is the node's executor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
import contextlib
from functools import partial
from inspect import isawaitable
import threading
from typing import Any, Protocol

import zenoh

from lerobot_serve.contract.data_path.header import read_envelope
from lerobot_serve.contract.data_path.observation import read_queue_remaining
from lerobot_serve.contract.errors import Malformed
from lerobot_serve.zenoh.keys import (
    client_of,
    ClientKeys,
    PREDICT_CHUNK,
    Role,
    ServerKeys,
    WITHDRAW,
)
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.link_sender import LINK_FULL
from lerobot_serve.zenoh.predictions import Predictions, SubmitPrediction
from lerobot_serve.zenoh.settings import Traffic

Handler = Callable[[Any, Any], Any]
Call = Callable[[], Coroutine[Any, Any, None]]
LOGGED_LIMIT, SPEAKER_LIMIT = 256, 80
# callers of gateways, and robots of routers
MAX_ASKED_FOR = 4096
# services whose calls a bag holds; Zenoh shows them to no third node
RECORDED = ('open_session', 'close_session', 'reset_episode')
# calls that run or wait: of one robot, of one router or gateway for all of its robots, of all
ROBOT_CALLS, ROUTER_CALLS, ALL_CALLS = 8, 128, 256
TOO_MANY_CALLS = (
    f'too many calls at once; allowed are {ROBOT_CALLS} of a robot, {ROUTER_CALLS} of a router '
    f'and {ALL_CALLS} in all: call again when those before have their replies'
)


class CallPlaces:
    """The calls that run or wait. Any thread."""

    def __init__(self) -> None:
        self._taken: Counter[ClientKeys] = Counter()
        self._lock = threading.Lock()

    def take(self, client: ClientKeys) -> Callable[[], None] | None:
        """
        Take a place for a call of a client; return what gives it back, which may be called again,
        or None when the client or all have too many.
        """
        limit = ROUTER_CALLS if client.role == Role.ROUTER else ROBOT_CALLS
        with self._lock:
            if self._taken[client] >= limit or self._taken.total() >= ALL_CALLS:
                return None
            self._taken[client] += 1
        return partial(self._release, [client])

    def _release(self, place: list[ClientKeys]) -> None:
        """Give a place back; `place` is empty once that is done."""
        with self._lock:
            if place:
                client = place.pop()
                self._taken[client] -= 1
                if not self._taken[client]:
                    del self._taken[client]


class ServerMessages(Protocol):
    """Requests and responses as CDR bytes; ros.contract.service_bytes implements it."""

    def read_request(self, service: str, raw: bytes) -> Any:
        """Raises ValueError for bytes that are not a request of this service."""

    def client_id(self, service: str, request: Any) -> str:
        """Return whom a request speaks for; empty without a client."""

    def reply_topic(self, service: str, request: Any) -> str:
        """Return where a request wants replies; empty without a session."""

    def new_response(self, service: str) -> Any: ...

    def encode(self, message: Any) -> bytes: ...

    def request_event(self, service: str, request: Any) -> bytes: ...

    def response_event(self, service: str, response: Any) -> bytes: ...


class ServerEndpoint:
    """`handlers` maps the name of each service to its function of request and response."""

    def __init__(
        self,
        link: ZenohLink,
        server: str,
        handlers: Mapping[str, Handler],
        messages: ServerMessages,
        *,
        run: Callable[[Call], object],
        on_observation: Callable[[bytes], None],
        on_drop: Callable[[str], None],
        log_warning: Callable[[str], object] = lambda _: None,
    ) -> None:
        self.keys = ServerKeys(link.settings.site, server)
        self._link, self._messages, self._run, self._on_drop = link, messages, run, on_drop
        self._pass_on, self._log_warning = on_observation, log_warning
        # of services, and of predictions: those wait for the policy, and must not keep a client
        # from withdrawing one, or from opening a session
        self._places, self._prediction_places = CallPlaces(), CallPlaces()
        # client -> the gateway or router that asks for it; only the thread of Zenoh writes
        self._askers: dict[str, ClientKeys] = {}
        # client and service of refusals in the log: a client repeats a call that is refused
        self._logged: set[tuple[ClientKeys, str]] = set()
        self._queryables = [
            link.serve(self.keys.clients.service(name), partial(self._on_query, name, handler))
            for name, handler in handlers.items()
        ]
        self._observations = link.subscribe(self.keys.clients.observation, self._on_observation)
        self._status = link.publisher(self.keys.status, Traffic.STATUS)
        # last: a client that sees the token finds all of the above
        self._token = link.declare_alive(self.keys.alive)

    def publish_status(self, raw: bytes) -> None:
        self._status.put(raw)

    def publish_no_session(self, client_id: str, raw: bytes) -> None:
        """Reply to a client without a session, or to the gateway or router that asks for it."""
        robot = self.keys.client(Role.ROBOT, client_id)
        key = self._askers.get(client_id, robot).no_session
        if not self._link.put(key, raw, Traffic.CHUNK):
            self._on_drop(LINK_FULL)

    def _on_observation(self, key: str, raw: bytes) -> None:
        """Thread of Zenoh."""
        try:
            client_id = read_envelope(raw).client_id
        except Malformed as error:
            self._on_drop(error.reason)
            return
        try:
            client = client_of(key)
            is_own = client.may_speak_for(client_id)
        except ValueError:
            # published on many keys at once
            is_own = False
        if is_own:
            self._remember_asker(client, client_id)
            self._pass_on(raw)
        else:
            self._on_drop('wrong_client')

    def _remember_asker(self, client: ClientKeys, client_id: str) -> None:
        """Note who asks for a client, where that is not the client itself."""
        if client.role == Role.ROBOT:
            self._askers.pop(client_id, None)
        elif self._askers.get(client_id) != client:
            if len(self._askers) >= MAX_ASKED_FOR:
                # the oldest: callers of a gateway have new names again and again
                self._askers.pop(next(iter(self._askers)))
            self._askers[client_id] = client

    def _on_query(self, name: str, handler: Handler, query: zenoh.Query) -> None:
        """Thread of Zenoh."""
        payload = query.payload
        try:
            request = self._read(name, payload.to_bytes() if payload else b'')
            self._check_speaker(client_of(str(query.key_expr)), name, request)
        except ValueError as error:
            self._refuse(query, name, error)
            return
        self._run_call(name, query, partial(self._answer, name, handler, request, query))

    def _read(self, name: str, raw: bytes) -> Any:
        """Return a request. Raises ValueError."""
        try:
            return self._messages.read_request(name, raw)
        except ValueError as error:
            raise ValueError(
                f'the request cannot be read ({error}); both ends need the same version of '
                'lerobot_serve'
            ) from error

    def _speaker(self, query: zenoh.Query) -> ClientKeys:
        """Return the client of a call."""
        try:
            return client_of(str(query.key_expr))
        except ValueError:
            # a selector of many keys
            return ClientKeys(self.keys.prefix, 'unknown', 'client')

    def _refuse(
        self,
        query: zenoh.Query,
        name: str,
        error: ValueError | str,
        reason: str = 'malformed_service_request',
    ) -> None:
        """Count a call that is not run, and reply why; log the first of a client and service."""
        self._on_drop(reason)
        client = self._speaker(query)
        if (client, name) not in self._logged and len(self._logged) < LOGGED_LIMIT:
            self._logged.add((client, name))
            speaker = ascii(f'{client.role} {client.client}'[:SPEAKER_LIMIT])
            self._log_warning(f'refused a call of {speaker} over Zenoh: {name}: {error}')
        with query:
            query.reply_err(f'{name}: {error}'.encode())

    def _take_place(
        self, name: str, query: zenoh.Query, places: CallPlaces
    ) -> Callable[[], None] | None:
        """Return what gives the place of a call back; refuse one that finds too many there."""
        release = places.take(self._speaker(query))
        if release is None:
            self._refuse(query, name, TOO_MANY_CALLS, 'too_many_calls')
        return release

    def _run_call(self, name: str, query: zenoh.Query, call: Call) -> None:
        """Run a call in the node's executor, unless too many are there."""
        release = self._take_place(name, query, self._places)
        if release is None:
            return

        async def released() -> None:
            try:
                await call()
            finally:
                release()

        self._run_guarded(name, query, released)

    def _run_guarded(self, name: str, query: zenoh.Query, call: Call) -> None:
        """Run a call in the node's executor; one that fails ends neither it nor the node."""

        async def guarded() -> None:
            try:
                await call()
            except Exception as error:
                self._on_drop('failed_service_request')
                self._log_warning(f'{name} over Zenoh failed: {type(error).__name__}: {error}')
                # unless it has a reply already
                with contextlib.suppress(Exception), query:
                    query.reply_err(f'{name}: {error}'.encode())

        self._run(guarded)

    def _check_speaker(self, client: ClientKeys, name: str, request: Any) -> None:
        """Raise ValueError for a request of one client for another."""
        client_id = self._messages.client_id(name, request)
        if client_id and not client.may_speak_for(client_id):
            raise ValueError(
                f'client_id is {client_id!r}, and {client.prefix} speaks for itself alone'
            )
        topic = self._messages.reply_topic(name, request)
        if topic and not client.may_reply_on(topic):
            raise ValueError(f'reply_topic must be {client.replies()}, got {topic!r}')

    async def _answer(self, name: str, handler: Handler, request: Any, query: zenoh.Query) -> None:
        """The node's executor; a handler of a router awaits its servers."""
        with query:
            key = client_of(str(query.key_expr)).event(name)
            if name in RECORDED:
                self._link.put(key, self._messages.request_event(name, request), Traffic.STATUS)
            response = handler(request, self._messages.new_response(name))
            if isawaitable(response):
                response = await response
            query.reply(query.key_expr, self._messages.encode(response))
            if name in RECORDED:
                self._link.put(key, self._messages.response_event(name, response), Traffic.STATUS)

    def serve_predictions(self, submit: SubmitPrediction, withdraw: Callable[[str], bool]) -> None:
        """
        Serve requests without a session: one observation, one chunk. `submit` runs where services
        run and returns the key of a request; any thread may reply. `withdraw` removes a request
        that waits, which then has no reply; False if the policy has begun.
        """
        predictions = Predictions(submit, withdraw)

        def on_query(query: zenoh.Query) -> None:
            raw = query.payload.to_bytes() if query.payload else b''
            try:
                speaker = client_of(str(query.key_expr))
                start, _ = read_queue_remaining(raw)
                if not speaker.may_speak_for(start.client_id):
                    raise ValueError(f'{speaker.prefix} speaks for itself alone')
            except ValueError as error:
                self._refuse(query, PREDICT_CHUNK, error)
                return
            # it waits for the policy after `submit` has returned
            if release := self._take_place(PREDICT_CHUNK, query, self._prediction_places):
                call = partial(predictions.predict, raw, query, release)
                self._run_guarded(PREDICT_CHUNK, query, call)

        def on_withdrawal(query: zenoh.Query) -> None:
            self._run_call(WITHDRAW, query, partial(predictions.withdraw, query))

        self._queryables += [
            self._link.serve(self.keys.clients.service(PREDICT_CHUNK), on_query),
            self._link.serve(
                self.keys.clients.service(WITHDRAW),
                on_withdrawal,
            ),
        ]

    def close(self) -> None:
        """Say goodbye, then end; the session stays open."""
        self._token.undeclare()
        for queryable in self._queryables:
            queryable.undeclare()
        self._observations.undeclare()
        self._status.undeclare()
