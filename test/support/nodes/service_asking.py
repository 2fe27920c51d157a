# SPDX-License-Identifier: Apache-2.0
"""Call a service of a node under test: no response is lost to discovery."""

from __future__ import annotations

from typing import Any

from lifecycle_msgs.srv import GetState
from rcl_interfaces.srv import (
    DescribeParameters,
    GetParameters,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)
from rclpy.client import Client
from rclpy.node import Node

from lerobot_serve.ros.contract.service_call import call_service, wait_until_discovered
from lerobot_serve_interfaces.srv import GetStatus

LIMIT_S = 30.0
IDEMPOTENT = (
    DescribeParameters,
    GetParameters,
    GetState,
    GetStatus,
    ListParameters,
    SetParameters,
    SetParametersAtomically,
)


def ask(node: Node, client: Client, request: Any, limit_s: float = LIMIT_S) -> Any:
    """Return the response. The test's thread; raises ServiceCallFailed."""
    assert client.wait_for_service(limit_s), client.srv_name
    idempotent = client.srv_type in IDEMPOTENT
    if not idempotent:
        wait_until_discovered(node, client, limit_s)
    return call_service(client, request, limit_s, idempotent=idempotent)
