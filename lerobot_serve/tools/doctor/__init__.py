# SPDX-License-Identifier: Apache-2.0
"""
Checks machine, policy, robot file and ROS graph; each check returns findings with a remedy. Called
by `lerobot-serve doctor`. All modules except node.py are pure and receive the facts that they
check. The caller's thread and, for the node, an executor thread.
"""
