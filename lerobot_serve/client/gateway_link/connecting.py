# SPDX-License-Identifier: Apache-2.0
"""The connection of a client over the link to a gateway."""

from __future__ import annotations

from functools import partial

from lerobot_serve.client.connection import Connection
from lerobot_serve.client.gateway_link.channel import GatewayChannel
from lerobot_serve.client.gateway_link.server_link import GatewayServerLink
from lerobot_serve.client.settings import ClientSettings


def gateway_connection(settings: ClientSettings) -> Connection:
    """Return a connection to a gateway, which need not be there. Raises WrongSettings."""
    assert settings.gateway
    channel = GatewayChannel(settings.gateway)
    try:
        return Connection(settings, partial(GatewayServerLink, channel), channel.close)
    except BaseException:
        channel.close()
        raise
