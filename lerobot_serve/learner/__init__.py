# SPDX-License-Identifier: Apache-2.0
"""
The learner: rounds in which recorded episodes become a new version of a policy.

`rounds` decides what happens (rounds/learner.py in the thread `rounds`), `memory` keeps what must
survive a restart, `stock` knows which bags there are, `versions` chooses the parent of a round,
`step_process` starts child processes of low priority that do the work, and `trainers` train in one
of them. Only node.py and `ros` know ROS. Nothing here is on the way of an action.
"""
