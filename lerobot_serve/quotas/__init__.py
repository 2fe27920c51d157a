# SPDX-License-Identifier: Apache-2.0
"""
What a robot, or a group of robots, may ask of a router or a server: requests, bytes, inference.

    rules               the parameters of router and server, and the lines of `quotas`
    quotas              token buckets; admits requests, charges inference
    no_session_limiter  how often a robot without a session gets a reply

Called by the data path of router and server, in any of its threads. Plain; time is an argument.
"""
