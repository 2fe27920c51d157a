# SPDX-License-Identifier: Apache-2.0
"""
Starts nodes without `ros2`: one by the flags of a verb, or all of a fleet file.

`plan` turns the fleet file into an ordered list of processes, which `supervisor` runs and
`launch_file` and `systemd_units` print. Pure, except `supervisor` and `shipped`; main thread.
"""
