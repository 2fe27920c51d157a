# SPDX-License-Identifier: Apache-2.0
"""
Decode messages of other nodes: bytes become a message, or Malformed with a reason.

An undecodable message must neither end a node nor be lost uncounted, as in a subscription that
lets the middleware decode.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from rclpy.subscription import Subscription

from lerobot_serve.contract.errors import Malformed

UNDECODABLE = 'undecodable'


def decode_message(raw: bytes, kind: type, topic: str) -> Any:
    """Return the message of these bytes. Raises Malformed."""
    try:
        return deserialize_message(raw, kind)
    except Exception as error:
        # the middleware, the type support and their allocations each raise their own types
        raise Malformed(
            UNDECODABLE,
            f'{topic}: {len(raw)} bytes are not a {kind.__name__} ({type(error).__name__})',
        ) from error


def create_checked_subscription(
    node: Node,
    kind: type,
    topic: str,
    callback: Callable[[Any], None],
    profile: QoSProfile,
    *,
    on_drop: Callable[[str], None],
    **options: Any,
) -> Subscription:
    """Subscribe; `on_drop` receives the reason of each undecodable message."""
    receive = partial(_receive, kind, topic, callback, on_drop)
    return node.create_subscription(kind, topic, receive, profile, raw=True, **options)


def _receive(
    kind: type,
    topic: str,
    callback: Callable[[Any], None],
    on_drop: Callable[[str], None],
    raw: bytes,
) -> None:
    try:
        message = decode_message(raw, kind, topic)
    except Malformed as error:
        on_drop(error.reason)
    else:
        callback(message)
