# SPDX-License-Identifier: Apache-2.0

from typing import Any

class _Implementation:
    """rclpy's compiled part, which has no types."""

    class RCLError(RuntimeError): ...

    def __getattr__(self, name: str) -> Any: ...

rclpy_implementation: _Implementation
