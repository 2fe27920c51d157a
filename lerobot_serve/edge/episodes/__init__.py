# SPDX-License-Identifier: Apache-2.0
"""
Episodes of this robot: the RunEpisode goal in progress, how episodes end, and their outcomes.
Called by node.py and ros/run_episode_action.py in the executor thread; the trace recorder reads
outcomes from any thread.
"""
