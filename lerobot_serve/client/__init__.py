# SPDX-License-Identifier: Apache-2.0
"""
A client of policy servers and routers in plain Python, without ROS: for notebooks, simulators and
evaluations. docs/python_client.md shows how to use it.

    with PolicyClient.connect('policy_router', endpoints='tcp/127.0.0.1:7447') as client:
        session = client.open(task='reach the target')
        chunk = session.predict(state, images)

It speaks the Zenoh link with the same bytes as the edge and, where only HTTP/2 passes, the
PolicyService of a gateway (gateway_link/). It has no safety cage and no fallback ladder: a real
robot is driven by an edge_controller.

steps (plans and their drivers) <- session/ <- connection <- streams/ <- sync_client
and async_client. Plans decide and never wait; a driver waits, in a thread or in an
event loop.
"""

from lerobot_serve.client.async_client import AsyncPolicyClient, AsyncPolicySession
from lerobot_serve.client.errors import (
    ClientClosed,
    NotFinite,
    PolicyClientError,
    PolicyFailed,
    QuotaUsedUp,
    ServerUnavailable,
    SessionRejected,
    Superseded,
    TooLate,
    WrongObservation,
    WrongSettings,
)
from lerobot_serve.client.results import NO_CAGE, PolicyInfo, Prediction, Timings
from lerobot_serve.client.streams.async_prediction_stream import AsyncPredictionStream
from lerobot_serve.client.streams.prediction_stream import PredictionStream
from lerobot_serve.client.sync_client import PolicyClient, PolicySession

__all__ = [
    'NO_CAGE',
    'AsyncPolicyClient',
    'AsyncPolicySession',
    'AsyncPredictionStream',
    'ClientClosed',
    'NotFinite',
    'PolicyClient',
    'PolicyClientError',
    'PolicyFailed',
    'QuotaUsedUp',
    'PolicyInfo',
    'PolicySession',
    'Prediction',
    'PredictionStream',
    'ServerUnavailable',
    'SessionRejected',
    'Superseded',
    'Timings',
    'TooLate',
    'WrongObservation',
    'WrongSettings',
]
