# SPDX-License-Identifier: Apache-2.0
"""
The safety cage: the last check of each command, on every path. It fails closed. Called by
edge/control in the thread `tick`; MotionLimits also by router/shadow, which evaluates chunks that
never reach a robot. Plain: no clock, no lock, no ROS.
"""
