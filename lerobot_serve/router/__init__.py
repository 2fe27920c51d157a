"""
Between robots and policy servers: one contract towards both, one slot for each episode.

    split   which slot an episode belongs to
    sticky  where each episode was placed
    node    the wiring to ROS; forwards the bytes unread
"""
