# SPDX-License-Identifier: Apache-2.0
"""What a policy server or router offers over both links."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TYPE_CHECKING

from lerobot_serve.contract.names import is_reply_key
from lerobot_serve.ros.contract.reply_publishers import ReplyPublishers
from lerobot_serve.zenoh.settings import ZenohSettings

if TYPE_CHECKING:
    from lerobot_serve.ros.contract.zenoh_serving import ZenohServing
    from lerobot_serve.zenoh.replies import ZenohReplyPublishers


def serve_over_zenoh(settings: ZenohSettings, server: str) -> ZenohServing | None:
    """Return what serves over Zenoh; None without an endpoint. Raises UserError."""
    if not (settings.listen or settings.connect):
        return None
    # a server of robots over ROS 2 needs no eclipse-zenoh
    from lerobot_serve.ros.contract.zenoh_serving import ZenohServing

    return ZenohServing(settings, server)


def service_handlers(table: Any) -> dict[str, Any]:
    """Return name and callback of each row (type, name, callback, ...)."""
    return {row[1]: row[2] for row in table}


class LinkReplies:
    """
    Publish replies on the link that the reply topic of a session names. Threads as in
    ReplyPublishers.
    """

    def __init__(self, ros: ReplyPublishers, over_zenoh: ZenohServing | None) -> None:
        self._ros = ros
        self._zenoh = over_zenoh.replies if over_zenoh else None

    def _of(self, topic: str) -> ReplyPublishers | ZenohReplyPublishers:
        return self._zenoh if self._zenoh and is_reply_key(topic) else self._ros

    def open(self, topic: str) -> None:
        """Publish on a reply topic from now on. Raises SessionRefused."""
        self._of(topic).open(topic)

    def send(self, topic: str, raw: bytes, is_wanted: Callable[[], bool] = lambda: True) -> bool:
        """Publish a chunk; return False without a session on this topic."""
        return self._of(topic).send(topic, raw, is_wanted)

    def has_subscriber(self, topic: str) -> bool:
        """Return whether a reply topic has a subscriber."""
        return self._of(topic).has_subscriber(topic)

    def retain(self, topics: set[str]) -> None:
        """Close all other reply topics."""
        self._ros.retain({topic for topic in topics if not is_reply_key(topic)})
        if self._zenoh:
            self._zenoh.retain({topic for topic in topics if is_reply_key(topic)})

    def wait_until_delivered(self, timeout_s: float) -> bool:
        """Wait for acknowledgements over ROS 2; Zenoh has none, and delivers before it closes."""
        return self._ros.wait_until_delivered(timeout_s)
