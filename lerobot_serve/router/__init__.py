# SPDX-License-Identifier: Apache-2.0
"""
The policy router: a policy server to clients, a client to policy servers. node.py connects it to
ROS, runtime.py owns threads and transitions, core.py builds the parts from the parameters. Path of
a request: data_path/dispatcher -> placement/episode_placement -> data_path/forwarder ->
data_path/replica_transport. State and lock: data_path/routing_table.
"""
