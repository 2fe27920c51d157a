# SPDX-License-Identifier: Apache-2.0
"""
The recorder: writes bags of robots, as a strategy decides. The executor thread of node.py deposits
messages, a thread of its own compresses frames, the thread `writing` runs strategies/, and
`announcing` announces whole episodes. robots/ maps topics to robots, storage/ manages the files.
Only node.py imports rclpy.
"""
