# SPDX-License-Identifier: Apache-2.0
"""
LeRobot's async server and openpi's websocket client, each in processes of its own.
Started by round_trip, many_robots and slow_link; packages come from [bench] of requirements.txt.
Main thread; paced_robots runs an asyncio loop in a thread of its own.
"""
