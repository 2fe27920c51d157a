# SPDX-License-Identifier: Apache-2.0
"""Calls that ended without a reply, as errors of a link. Pure."""

from __future__ import annotations

import grpc

from lerobot_serve.client.errors import WrongSettings
from lerobot_serve.contract.services.session import ServerUnreachable

DETAIL_LIMIT = 400


def call_error(url: str, error: grpc.RpcError) -> WrongSettings | ServerUnreachable:
    """Return the error of a call that ended; wrong settings do not become right by a retry."""
    code, details = error.code(), (error.details() or '')[:DETAIL_LIMIT]
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return WrongSettings(f'{url} refuses this client: {details}', "give connect(token='...')")
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return WrongSettings(
            f'{url} is no gateway with the door policy_service, or one before 0.2 ({details})',
            'check the port, the path of a proxy, and the version of the gateway',
        )
    return ServerUnreachable(f'{url}: {details or code.name.lower()}')
