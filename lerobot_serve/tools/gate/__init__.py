# SPDX-License-Identifier: Apache-2.0
"""
Compares a new policy with its parent on recorded episodes, before it drives a robot; docs/gate.md.
Called by `lerobot-serve gate`, which serves both policies in its process. Pure but for
collecting.py; one thread, needs no ROS.
"""
