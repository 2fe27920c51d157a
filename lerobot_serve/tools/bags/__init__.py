# SPDX-License-Identifier: Apache-2.0
"""
Reads bags (MCAP, SQLite) and shows them as request/reply pairs or as trace records; docs/bags.md.
Called by replay, stats and audit; needs no ROS.
One thread.
"""
