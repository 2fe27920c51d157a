# SPDX-License-Identifier: Apache-2.0
"""
Writes a bag in the layout of `ros2 bag`; node.py hears what the recorder and rerun_view take.
The executor thread deposits messages in write_queue; the thread `writing` owns the file.
Only node.py imports rclpy.
"""
