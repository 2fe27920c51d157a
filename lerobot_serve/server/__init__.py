"""
One policy on one device, for many robots.

    sessions    who may ask, and under which contract
    mailbox     the newest request of each client, nothing older
    intake      an observation checked against its session
    worker      the one thread that owns the policy
    statistics  what GetStatus, the status topic and the metrics tell
    watch       who hears what becomes of requests: recorder (the trace) and capture
    ring        the last requests in memory; capture_files: those that were written
    services    what operators and clients ask of it
    node        the wiring to ROS
"""
