# SPDX-License-Identifier: Apache-2.0
"""
Shows a live robot or a bag in the Rerun viewer: `lerobot-serve rerun`; docs/rerun.md.

message_mapping turns messages into entries (entity, value, times) with robot_mapping, node_mapping
and joint_values, which remember what they showed; they import neither ROS nor rerun. blueprint and
rerun_sink alone import the package rerun. The thread that reads messages owns all of it.
"""
