# SPDX-License-Identifier: Apache-2.0
# SPDX-License-Identifier: Apache-2.0
"""What lerobot_serve uses of msgpack; read by mypy only."""

from typing import Any

class UnpackException(Exception): ...

def packb(o: object, **options: Any) -> bytes: ...
def unpackb(packed: bytes | memoryview, **options: Any) -> Any: ...
