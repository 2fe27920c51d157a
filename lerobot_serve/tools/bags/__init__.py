# SPDX-License-Identifier: Apache-2.0
"""
Reads bags (MCAP, SQLite) and shows them as request/reply pairs or as trace records, and writes
them in the layout of `ros2 bag`; docs/bags.md. Called by replay, stats, audit, recorder and
rerun_view. One thread reads; the executor thread deposits messages in write_queue, and the thread
`writing` owns the file. Only node.py imports rclpy.
"""
