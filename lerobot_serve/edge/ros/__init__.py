# SPDX-License-Identifier: Apache-2.0
"""
ROS adapters of the edge controller: sensor messages and replies of servers in, commands and calls
of the stop service out, RunEpisode. Only edge/node.py and tools import this folder. Callbacks run
in the executor thread, replies in the thread `replies`, commands in `tick`.
"""
