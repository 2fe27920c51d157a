# SPDX-License-Identifier: Apache-2.0
"""The client for notebooks, simulators and scripts: each call blocks, for a bounded time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack

from numpy.typing import ArrayLike

from lerobot_serve.client.connection import ClientFacts, make_connection
from lerobot_serve.client.results import PolicyInfo, Prediction
from lerobot_serve.client.session.facts import SessionFacts
from lerobot_serve.client.settings import (
    client_settings,
    ServerOptions,
    session_settings,
    SessionOptions,
)
from lerobot_serve.client.steps import Closing, run_plan
from lerobot_serve.client.streams.prediction_stream import PredictionStream
from lerobot_serve.local.signal import Signal


class PolicyClient(ClientFacts, Closing):
    """A connection to one policy server or router. Any thread; use it in a `with`."""

    @classmethod
    def connect(cls, server: str = 'policy_router', **options: Unpack[ServerOptions]) -> Self:
        """
        Return a client once the server is there. Raises WrongSettings and ServerUnavailable.

        server     name of its node: policy_router, or prod/policy_server; where only HTTP/2 passes
                   the address of a gateway: grpc://HOST:PORT, or grpcs://HOST:PORT with TLS
        endpoints  its zenoh_listen as seen from here, tcp/HOST:PORT; with keys tls/ or quic/
        site       its zenoh_site
        keys       folder that `lerobot-serve keys robot NAME` made; None: no encryption
        client_id  its name in logs and traces, after client/; empty: of this process or the keys
        timeout_s  of this call, and of others unless they are given one
        token      for a gateway that has tokens
        tls_ca     PEM file of the authority of a gateway; None: those of the system
        local_path pass requests in shared memory where the server is on this host
        keep_memory
                   have the allocator of this process keep up to 256 MB of freed memory: without,
                   each request of several images costs hundreds of page faults
        """
        settings = client_settings(server, **options)
        connection = make_connection(settings, callers_receive=True)
        try:
            run_plan(connection.wait_for_server(settings.timeout_s, Signal()))
        except BaseException:
            run_plan(connection.close())
            raise
        return cls(connection)

    def describe(self, timeout_s: float | None = None) -> PolicyInfo:
        """Return what is served, once it is loaded. Raises ServerUnavailable."""
        return run_plan(self._connection.describe(self._timeout_s(timeout_s), Signal()))

    def open(
        self,
        *,
        client_id: str = '',
        timeout_s: float | None = None,
        **asked: Unpack[SessionOptions],
    ) -> PolicySession:
        """
        Open a session. Raises WrongSettings, SessionRejected and ServerUnavailable.

        state_names, action_names, cameras
                   names in the order of your arrays; the server refuses others than its own.
                   None: those of the policy, unchecked
        fps        rate of your control steps [Hz]; None: that of the policy
        task       what the robot shall do, in words
        policy     id or fingerprint that must answer; empty: any
        codec      raw: the pixels as they are; jpeg: a tenth of the bytes, with losses
        jpeg_quality
                   1 to 100, of jpeg
        client_id  of this session, after client/; empty: that of the client, with a number
        tags       labels for logs and traces
        timeout_s  of this call and of each prediction; None: that of the client
        """
        limit_s = self._timeout_s(timeout_s)
        info = self.describe(limit_s)
        session = self._connection.new_session(
            client_id, lambda name: session_settings(info, name, limit_s, **asked)
        )
        try:
            run_plan(session.open(limit_s, session.signal()))
        except BaseException:
            run_plan(session.close())
            raise
        return PolicySession(session, info)

    def close(self) -> None:
        """Close all sessions and the connection; another call completes an interrupted one."""
        run_plan(self._connection.close())


class PolicySession(SessionFacts, Closing):
    """
    One session: one request in flight. Any thread; of calls of several threads the newest waits,
    and older ones raise Superseded.
    """

    def predict(
        self,
        state: ArrayLike,
        images: Mapping[str, Any] | None = None,
        task: str | None = None,
        *,
        timeout_s: float | None = None,
    ) -> Prediction:
        """
        Return a chunk of actions for an observation. Raises PolicyClientError.

        state   one value for each of state_names
        images  camera name to height x width x 3, uint8, RGB
        task    for this request; None: that of the episode
        A server that restarts within the timeout costs time, no error: the session is opened anew.
        """
        observed = self._check(state, images, copy=self._keeps_history)
        limit_s = self._limit_s(timeout_s)
        return run_plan(self._plans.predict(observed, task, limit_s, self._plans.signal()))

    def begin_episode(self, *, task: str | None = None, episode_id: str = '') -> str:
        """
        End the episode and begin the next one; return its id. A router places it anew.

        task        of the episode; None: that of the session
        episode_id  unique in the fleet; empty: one is made
        """
        return run_plan(self._plans.begin_episode(task, episode_id, self.timeout_s))

    reset = begin_episode

    def stream(self, timeout_s: float | None = None) -> PredictionStream:
        """Return a stream of predictions for the newest observation."""
        limit_s = self._limit_s(timeout_s)
        return PredictionStream(self._plans, self._check, limit_s)

    def close(self) -> None:
        """Close the session; another call completes one that was interrupted."""
        run_plan(self._plans.close())
