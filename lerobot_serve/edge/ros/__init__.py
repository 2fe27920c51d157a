# SPDX-License-Identifier: Apache-2.0
"""
ROS adapters of the edge controller: sensor messages in, replies of servers, RunEpisode, the stop
service. Only edge/node.py and tools import this folder. Callbacks run in the executor thread,
replies in the thread `replies`.
"""
