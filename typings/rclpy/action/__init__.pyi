# SPDX-License-Identifier: Apache-2.0

from rclpy.action.client import ActionClient as ActionClient
from rclpy.action.server import ActionServer as ActionServer
from rclpy.action.server import CancelResponse as CancelResponse
from rclpy.action.server import GoalResponse as GoalResponse
