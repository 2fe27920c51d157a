# SPDX-License-Identifier: Apache-2.0
"""The parameters that every door has, by the name of the door."""

from __future__ import annotations

from lerobot_serve.parameters import parameter


def port(door: str, default: int) -> int:
    """Return the parameter `port` of a door."""
    return parameter(
        default,
        f'port of the door {door}; 0 takes any free one and logs it',
        low=0,
        high=65535,
        name=f'{door}.port',
    )


def host(door: str) -> str:
    """Return the parameter `host` of a door."""
    return parameter(
        '127.0.0.1',
        f'address of the door {door}; 0.0.0.0 for all interfaces, with {door}.tokens_file',
        name=f'{door}.host',
    )


def tokens_file(door: str) -> str:
    """Return the parameter `tokens_file` of a door."""
    return parameter(
        '',
        'file with lines NAME TOKEN of the callers that are let in, which only its owner reads; '
        'made with one token where it is missing; empty: callers need no token',
        name=f'{door}.tokens_file',
    )


def allow_anyone(door: str) -> bool:
    """Return the parameter `allow_anyone` of a door."""
    return parameter(
        False,
        f'allow {door}.host to be an address of the network without {door}.tokens_file',
        name=f'{door}.allow_anyone',
    )


def certificate_file(door: str) -> str:
    """Return the parameter `certificate_file` of a door."""
    return parameter(
        '',
        f'PEM file with the TLS certificate of the door, with {door}.key_file; empty: no TLS',
        name=f'{door}.certificate_file',
    )


def key_file(door: str) -> str:
    """Return the parameter `key_file` of a door."""
    return parameter(
        '', 'PEM file with the private key of the TLS certificate', name=f'{door}.key_file'
    )


def mapping(door: str) -> str:
    """Return the parameter `mapping` of a door."""
    return parameter(
        '',
        'YAML file with the names of callers for cameras, state and actions; empty: their names '
        'are those of the policy',
        name=f'{door}.mapping',
    )


def max_message_mb(door: str, default: int = 16) -> int:
    """Return the parameter `max_message_mb` of a door."""
    return parameter(
        default,
        'largest body or message of a caller; a larger one is refused before it is read',
        unit='MB',
        low=1,
        high=256,
        name=f'{door}.max_message_mb',
    )


def read_timeout_s(door: str) -> float:
    """Return the parameter `read_timeout_s` of a door."""
    return parameter(
        10.0,
        'longest time from the first to the last byte of a body or message',
        unit='s',
        low=0.1,
        high=3600.0,
        name=f'{door}.read_timeout_s',
    )


def write_timeout_s(door: str) -> float:
    """Return the parameter `write_timeout_s` of a door."""
    return parameter(
        10.0,
        'longest time that a caller may leave a reply unread before it is disconnected',
        unit='s',
        low=0.1,
        high=3600.0,
        name=f'{door}.write_timeout_s',
    )


def max_connections(door: str) -> int:
    """Return the parameter `max_connections` of a door."""
    return parameter(
        256,
        'maximum number of open connections; further ones are refused',
        low=1,
        high=65536,
        name=f'{door}.max_connections',
    )


def handshake_timeout_s(door: str) -> float:
    """Return the parameter `handshake_timeout_s` of a door."""
    return parameter(
        5.0,
        'longest time until a new connection has greeted as its protocol demands; TLS has as long '
        'before it',
        unit='s',
        low=0.1,
        high=60.0,
        name=f'{door}.handshake_timeout_s',
    )


def ping_interval_s(door: str) -> float:
    """Return the parameter `ping_interval_s` of a door."""
    return parameter(
        20.0,
        'silence after which a caller is pinged; after twice as long it is disconnected',
        unit='s',
        low=0.1,
        high=3600.0,
        name=f'{door}.ping_interval_s',
    )
