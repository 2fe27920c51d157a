# SPDX-License-Identifier: Apache-2.0
"""
The recorder: what is kept of robots, by a strategy. The executor thread of node.py deposits
messages, a thread of its own compresses frames, the thread `writing` runs all of strategies/, and
`announcing` announces whole episodes. robots/ knows whose a message is, storage/ what is on the
disk. Only node.py imports rclpy.
"""
