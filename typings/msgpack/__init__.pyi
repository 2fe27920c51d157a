# SPDX-License-Identifier: Apache-2.0
# SPDX-License-Identifier: Apache-2.0
"""What lerobot_serve uses of msgpack; read by mypy only."""

def packb(o: object) -> bytes: ...
