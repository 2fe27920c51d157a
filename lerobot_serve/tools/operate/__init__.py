# SPDX-License-Identifier: Apache-2.0
"""
Operate a running fleet: rollouts, slots, robots and learners, for the verbs of `lerobot-serve`.

`fleet_client`, its `service_calls` and `discovery/` alone know ROS; `operations`,
`replica_loading` and `swapping` change something through it and confirm the change; all other
modules are pure. The caller's thread, and for verbs on all robots one for each.
"""
