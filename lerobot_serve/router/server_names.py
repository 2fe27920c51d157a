# SPDX-License-Identifier: Apache-2.0
"""Names of policy servers as parameters give them. Pure functions."""

from __future__ import annotations

from lerobot_serve.parameters import ParameterError
from lerobot_serve.wire.names import is_topic


def check_server(name: str, server: str) -> None:
    """Raise ParameterError for what cannot be a node."""
    if not is_topic(full_name('/', server)):
        raise ParameterError(
            f'{name} must name nodes, like /a/policy_server or a/policy_server: {server!r}'
        )


def full_name(namespace: str, server: str) -> str:
    """Return the full name of a node; one without a leading / is relative to the namespace."""
    return server if server.startswith('/') else f'{namespace.rstrip("/")}/{server}'
