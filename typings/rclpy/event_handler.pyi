# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable
from typing import Any

class PublisherEventCallbacks:
    def __init__(
        self,
        *,
        deadline: Callable[[Any], None] | None = ...,
        liveliness: Callable[[Any], None] | None = ...,
        incompatible_qos: Callable[[Any], None] | None = ...,
        matched: Callable[[Any], None] | None = ...,
        use_default_callbacks: bool = ...,
    ) -> None: ...

class SubscriptionEventCallbacks:
    def __init__(
        self,
        *,
        deadline: Callable[[Any], None] | None = ...,
        liveliness: Callable[[Any], None] | None = ...,
        message_lost: Callable[[Any], None] | None = ...,
        incompatible_qos: Callable[[Any], None] | None = ...,
        matched: Callable[[Any], None] | None = ...,
        use_default_callbacks: bool = ...,
    ) -> None: ...
