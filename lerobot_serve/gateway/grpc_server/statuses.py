# SPDX-License-Identifier: Apache-2.0
"""Errors of predictions as gRPC's statuses, and what goes along in metadata."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import grpc

from lerobot_serve.gateway.callers.caller import NO_CAGE
from lerobot_serve.gateway.callers.predictions import Prediction, PredictionError, Status
from lerobot_serve.gateway.grpc_server.callers import Context

CODES: Mapping[Status, grpc.StatusCode] = {
    Status.INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Status.TOO_LATE: grpc.StatusCode.DEADLINE_EXCEEDED,
    Status.SUPERSEDED: grpc.StatusCode.ABORTED,
    Status.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Status.QUOTA: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Status.UNAVAILABLE: grpc.StatusCode.UNAVAILABLE,
    Status.NOT_FINITE: grpc.StatusCode.INTERNAL,
    Status.UNAUTHORIZED: grpc.StatusCode.UNAUTHENTICATED,
    Status.FAILED: grpc.StatusCode.INTERNAL,
}
PREFIX = 'lerobot-serve-'
NOTE = ((PREFIX + 'note', NO_CAGE),)
Metadata = tuple[tuple[str, str], ...]


async def abort(context: Context, error: PredictionError) -> NoReturn:
    """End a call with an error."""
    metadata: Metadata = ((PREFIX + 'status', str(error.status)),)
    if error.retry_after_s > 0:
        # gRPC's own name for it
        metadata += (('grpc-retry-pushback-ms', f'{error.retry_after_s * 1e3:.0f}'),)
    await context.abort(CODES[error.status], error.text, metadata)


def prediction_metadata(prediction: Prediction) -> Metadata:
    """Return who predicted, as metadata that ends a call."""
    values = {
        'slot': prediction.slot,
        'fingerprint': prediction.fingerprint,
        'episode-id': prediction.episode_id,
        'policy-changed': str(prediction.policy_changed).lower(),
        'inference-ms': f'{prediction.inference_ms:.3f}',
        'queue-wait-ms': f'{prediction.queue_wait_ms:.3f}',
    }
    return tuple((PREFIX + name, _ascii(value)) for name, value in values.items())


def _ascii(text: str) -> str:
    """Return a text as metadata allows it."""
    return text.encode('ascii', 'backslashreplace').decode()
