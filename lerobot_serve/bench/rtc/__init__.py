"""
Remote real-time chunking against LeRobot's own loop, on the same observations.

    script   when requests are sent, how long answers take, what the robot plays meanwhile
    scene    a SmolVLA small enough for a thousand scripts, and what a robot sees
    remote   the edge's exchange and queue, the wire, and a policy served as policy_server does it
    local    LeRobot's loop: its policy, processors, RTCProcessor, LatencyTracker and ActionQueue
    parity   both under one script: equal in bytes are all rows that are played or left to play
"""
