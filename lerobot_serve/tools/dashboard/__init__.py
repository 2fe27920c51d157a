# SPDX-License-Identifier: Apache-2.0
"""
`lerobot-serve dashboard`: serves one page for a whole fleet.

`node.py` and `ros/` read the newest states in a poll thread; `document/` turns them into one
document and its patches; `http/` serves them from a thread with an event loop of its own;
`http/guards.py` decides who may read and act; `planned_commands` and `command_runner` run the
commands of operators by the functions of the verbs; `robot_messages` and `robot_window` keep one
minute of one robot; `evidence` reads traces and captures. Only `ros/` and `node.py` know ROS, only
`http/` knows aiohttp.
"""
