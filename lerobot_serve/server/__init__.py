"""
One policy on one device, for many robots.

    sessions    who may ask, and under which contract
    mailbox     the newest request of each client, nothing older
    intake      an observation checked against its session
    worker      the one thread that owns the policy
    statistics  what GetStatus and the status topic tell
    node        the wiring to ROS
"""
