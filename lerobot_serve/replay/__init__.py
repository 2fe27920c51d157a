"""
What was recorded, asked again: the same requests through the same server code to a policy, and
its chunks compared with those of then. docs/bags.md has it.

    sources   requests and their answers from a bag, an incident or a trace
    replayer  a policy, served as a policy_server does it, in the thread of whoever asks
    names     stand-ins for names and rate that a policy does not hold
    compare   two answers to one request, and how far they are apart
    replay    all of a recording, summed up by slot and policy
    verdict   whether that is what was hoped for
    report    the sum for people and for machines

Plain; needs no ROS.
"""
