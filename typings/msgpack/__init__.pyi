# SPDX-License-Identifier: Apache-2.0
# SPDX-License-Identifier: Apache-2.0
"""What lerobot_serve uses of msgpack; read by mypy only."""

from collections.abc import Callable
from typing import Any

class UnpackException(Exception): ...

def packb(o: object, *, default: Callable[[Any], Any] | None = ...) -> bytes: ...
def unpackb(
    packed: bytes | memoryview,
    *,
    object_hook: Callable[[dict[Any, Any]], Any] | None = ...,
    list_hook: Callable[[list[Any]], Any] | None = ...,
    ext_hook: Callable[[int, bytes], Any] = ...,
    max_array_len: int = ...,
    max_map_len: int = ...,
) -> Any: ...
