# SPDX-License-Identifier: Apache-2.0
"""The parameters of the Zenoh link, which are the same in every node."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lerobot_serve.errors import UserError
from lerobot_serve.parameters import parameter
from lerobot_serve.zenoh.settings import ZenohSettings


def link() -> str:
    """Return the parameter `link`."""
    return parameter(
        'ros',
        'link to the servers: ros, their services and topics; zenoh, faster and encrypted, see '
        'zenoh_connect. One server alone is reached over Zenoh with the name zenoh:/NAME',
        choices=('ros', 'zenoh'),
    )


def zenoh_connect() -> tuple[str, ...]:
    """Return the parameter `zenoh_connect`."""
    return parameter(
        (),
        'Zenoh endpoints to connect to, of servers: tcp/HOST:PORT, or with zenoh_keys '
        'tls/HOST:PORT or quic/HOST:PORT, also of a Zenoh router',
    )


def zenoh_listen() -> tuple[str, ...]:
    """Return the parameter `zenoh_listen`."""
    return parameter((), 'Zenoh endpoints to listen on, such as tcp/0.0.0.0:7447')


def zenoh_site() -> str:
    """Return the parameter `zenoh_site`."""
    return parameter('default', 'first part of all Zenoh keys; robots reach servers of their site')


def zenoh_keys() -> str:
    """Return the parameter `zenoh_keys`."""
    return parameter(
        '', 'folder with the TLS key and certificates of this machine; empty: no encryption'
    )


class ZenohParameters(Protocol):
    """The parameters of a node, including those of the link."""

    @property
    def zenoh_connect(self) -> tuple[str, ...]: ...

    @property
    def zenoh_listen(self) -> tuple[str, ...]: ...

    @property
    def zenoh_site(self) -> str: ...

    @property
    def zenoh_keys(self) -> str: ...


def zenoh_settings(parameters: ZenohParameters) -> ZenohSettings:
    """Return the settings of the link. Raises UserError for keys that encrypt nothing."""
    if parameters.zenoh_keys and not (parameters.zenoh_connect or parameters.zenoh_listen):
        raise UserError(
            'zenoh_keys is set, and neither zenoh_connect nor zenoh_listen: nothing passes over '
            'Zenoh, and nothing is encrypted; set the endpoints, or leave zenoh_keys empty'
        )
    return ZenohSettings(
        parameters.zenoh_site,
        parameters.zenoh_connect,
        parameters.zenoh_listen,
        Path(parameters.zenoh_keys) if parameters.zenoh_keys else None,
    )
