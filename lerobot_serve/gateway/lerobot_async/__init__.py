# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's `transport.AsyncInference` for unmodified RobotClients of 0.4.4 to 0.6.1.

`door` -> `clients` -> `agreement`. No module knows LeRobot, torch or ROS.
"""
