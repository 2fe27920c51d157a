# SPDX-License-Identifier: Apache-2.0
"""
The policy router: towards clients a policy server, towards policy servers a client. node.py
connects it to ROS, runtime.py owns threads and transitions, core.py builds the rest from the
parameters. One request: data_path/dispatcher -> placement/episode_placement ->
data_path/forwarder -> data_path/replica_transport.
"""
