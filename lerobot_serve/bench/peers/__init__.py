"""
What a user would pick instead: LeRobot's async server and openpi's client.

    packages    what they need of PyPI, in folders of their own
    processes   starts a server and a client of a peer, in other network namespaces too
    trips       the process of a client: makes a trip whenever it is asked to
    fleet       many clients in one process
    lerobot     LeRobot's server and clients
    openpi      a server for openpi's format, and its client

No other room imports this one. Main thread, but for what `fleet` says of its threads.
"""
