# SPDX-License-Identifier: Apache-2.0
"""
The recorder: writes bags of robots, as a strategy decides. The executor thread of node.py deposits
messages, a thread of its own compresses frames, the thread `writing` runs the strategies (the
children of StrategyWriter; time is the monotonic clock) and names whole bags, which the thread
`announcing` reads, hashes and announces; neither waits for the other. Only node.py imports rclpy.
"""
