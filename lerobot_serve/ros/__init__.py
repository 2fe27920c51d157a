"""
Everything that the nodes share of ROS 2: QoS profiles, the package share folder, launch support.

    process/   context, executor, threads, signals, command line of one process
    node/      lifecycle, parameters, clocks and small services that every node has
    topics/    subscriptions and image messages
    contract/  the contract of a policy server: session client, session messages, PredictChunk

Called by node.py and <room>/ros/ of each room. Knows no room.
"""
