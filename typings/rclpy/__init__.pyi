# SPDX-License-Identifier: Apache-2.0
"""What lerobot_serve uses of rclpy, the same in Jazzy and Kilted; read by mypy only."""

from rclpy.context import Context as Context
from rclpy.signals import SignalHandlerOptions

def init(
    *,
    args: list[str] | None = ...,
    context: Context | None = ...,
    domain_id: int | None = ...,
    signal_handler_options: SignalHandlerOptions | None = ...,
) -> None: ...
def get_rmw_implementation_identifier() -> str: ...
