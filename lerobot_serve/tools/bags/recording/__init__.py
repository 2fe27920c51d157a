# SPDX-License-Identifier: Apache-2.0
"""
Writes a bag as `ros2 bag` lays it out; node.py is the recorder of `lerobot-serve record`.
The executor thread deposits messages in write_queue; the thread `writing` owns the file.
Only node.py imports rclpy.
"""
