# SPDX-License-Identifier: Apache-2.0
"""
ROS adapters of the policy router: clients of replicas and of the shadow, PredictChunk proxy,
publishers.  Only router/node.py imports this folder. Replies arrive in the threads `replies` and
`shadow_replies`, goals are sent by `goals`.
"""
