# SPDX-License-Identifier: Apache-2.0
"""
Episodes of this robot: the RunEpisode goal in progress, how episodes end, and their outcomes.
Called by node.py and ros/run_episode in the executor thread; outcomes are read by the trace
recorder from any thread.
"""
