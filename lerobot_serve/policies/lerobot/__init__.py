# SPDX-License-Identifier: Apache-2.0
"""
LeRobot checkpoints, served by LeRobot's own networks and processors. `loader` is the entry point:
`checkpoint` checks the files, `compat` imports LeRobot, `loading` builds the policy, `prediction`
runs it. Thread: `inference`.
"""
