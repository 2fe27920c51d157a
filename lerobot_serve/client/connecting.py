# SPDX-License-Identifier: Apache-2.0
"""The link of a client, chosen by the address of its server."""

from __future__ import annotations

from lerobot_serve.client.connection import Connection, zenoh_connection
from lerobot_serve.client.errors import WrongSettings
from lerobot_serve.client.settings import ClientSettings

EXTRA = "pip install 'lerobot_serve[client-grpc]', or '.[client-grpc]' in a clone"


def make_connection(settings: ClientSettings) -> Connection:
    """Return a connection, whose server need not be there. Raises WrongSettings."""
    if settings.gateway is None:
        return zenoh_connection(settings)
    try:
        # an installation for Zenoh alone has neither grpcio nor protobuf
        from lerobot_serve.client.gateway_link.server_link import gateway_connection
    except ImportError as error:
        raise WrongSettings(
            f'{settings.server} needs grpcio and protobuf ({error})', f'install both: {EXTRA}'
        ) from None
    return gateway_connection(settings)
