# SPDX-License-Identifier: Apache-2.0
"""
ROS adapters of the policy router: clients of replicas and of the shadow, PredictChunk proxy,
publishers. Imported by router/node.py only. Replies arrive in the threads `replies` and
`shadow_replies`; the thread `goals` sends goals.
"""
