# SPDX-License-Identifier: Apache-2.0
"""
Who calls, whether the call is allowed, and how it ends: errors of predictions as gRPC's statuses,
and what goes along in metadata. Pure but for the context of the call.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn, TypeAlias
from urllib.parse import unquote

import grpc

from lerobot_serve.gateway.access import Exposure
from lerobot_serve.gateway.callers.caller import Caller, NO_CAGE
from lerobot_serve.gateway.callers.predictions import (
    CODES,
    invalid,
    Prediction,
    PredictionError,
    Status,
)

Context: TypeAlias = 'grpc.aio.ServicerContext[Any, Any]'
SCHEME = 'bearer '
NAME_KEY, NAME = 'client-name', re.compile(r'[\w.@-]{1,64}', re.ASCII)
PREFIX = 'lerobot-serve-'
NOTE = ((PREFIX + 'note', NO_CAGE),)
Metadata = tuple[tuple[str, str], ...]


def caller_of(context: Context, exposure: Exposure) -> Caller:
    """
    Return the caller of a call that is let in: its connection, and the name of its token. Raises
    PredictionError (INVALID).
    """
    names = filter(None, (exposure.name_of(token_of(context)), client_name(context)))
    return Caller(exposure.door, address_of(context.peer()), '/'.join(names))


def check_token(context: Context, exposure: Exposure) -> None:
    """Raise PredictionError (UNAUTHORIZED) for a call that is not let in."""
    token = token_of(context)
    if not exposure.lets_in(token):
        given = 'a wrong token' if token else 'no token'
        raise PredictionError(
            Status.UNAUTHORIZED,
            f'the call has {given}; send metadata authorization: Bearer TOKEN, with a token of '
            f'{exposure.door}.tokens_file',
        )


def token_of(context: Context) -> str:
    """Return the token of the metadata; empty for none."""
    for key, value in context.invocation_metadata() or ():
        if key == 'authorization' and isinstance(value, str):
            is_bearer = value[: len(SCHEME)].lower() == SCHEME
            return value[len(SCHEME) :].strip() if is_bearer else value.strip()
    return ''


def client_name(context: Context) -> str:
    """
    Return what a client calls itself: clients that share one connection, as channels of one
    process and a proxy do, are told apart by it. Raises PredictionError (INVALID).
    """
    for key, value in context.invocation_metadata() or ():
        if key == NAME_KEY:
            name = value if isinstance(value, str) else ''
            if not NAME.fullmatch(name):
                raise invalid(
                    f'metadata {NAME_KEY} must be 1 to 64 letters, digits or ._@-, got '
                    f'{name[:80]!r}',
                )
            return name
    return ''


def address_of(peer: str) -> str:
    """Return host and port of a peer such as ipv4:127.0.0.1:5000 or ipv6:%5B::1%5D:5000."""
    return unquote(peer.partition(':')[2]) or peer


async def abort(context: Context, error: PredictionError) -> NoReturn:
    """End a call with an error."""
    metadata: Metadata = ((PREFIX + 'status', str(error.status)),)
    if error.retry_after_s > 0:
        # gRPC's own name for it
        metadata += (('grpc-retry-pushback-ms', f'{error.retry_after_s * 1e3:.0f}'),)
    code = grpc.StatusCode[CODES[error.status][1]]
    await context.abort(code, error.text, metadata)


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
