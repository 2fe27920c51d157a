# SPDX-License-Identifier: Apache-2.0
"""
Find the routers, robots and learners of a ROS domain, hold their latched states, and remember
the nodes for the next verb.

The fleet client calls it, in the thread of a verb.
"""
