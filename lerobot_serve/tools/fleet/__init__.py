# SPDX-License-Identifier: Apache-2.0
"""
Starts nodes without `ros2`: one by the flags of a verb, or all of a fleet file.

`plan` turns the fleet file into an ordered list of processes, which `supervisor` runs and
`printed_plans` prints. Pure, except `supervisor`, `shipped` and `process_output`; the main thread
and the threads that read the output of a process.
"""
