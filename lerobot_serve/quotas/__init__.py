# SPDX-License-Identifier: Apache-2.0
"""
What a robot, or a group of robots, may ask of a router or a server: requests, bytes, inference.

    rules               the lines of the parameter quotas
    token_bucket        one bucket
    quotas              admits requests, charges inference
    quota_parameters    the parameters of router and server
    no_session_limiter  how often a robot without a session gets a reply

Called by the data path of router and server, in any of its threads. Plain; time is an argument.
"""
