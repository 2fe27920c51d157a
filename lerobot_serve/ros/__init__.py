# SPDX-License-Identifier: Apache-2.0
"""
ROS 2 code that all nodes share: QoS profiles, subscriptions, image messages,
the package share folder, launch support.

    process/   context, executor, threads, signals, command line of one process
    node/      lifecycle, parameters, clocks and small services of every node
    contract/  the contract of a policy server: service calls, session messages, PredictChunk

Called by node.py and <room>/ros/ of each room. Imports no room of a node.
"""
