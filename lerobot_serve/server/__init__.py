# SPDX-License-Identifier: Apache-2.0
"""
The policy server: one policy on one device, for many clients.
`node` wires ROS to `core`, which `parameters` rule; `messages` fills ROS messages.
Threads: executor (services, status), `intake` (observations), `inference` (owns the policy),
`trace` and `capture` (write files), one for each lifecycle transition, and `swap`, which loads
another policy beside the served one.
"""
