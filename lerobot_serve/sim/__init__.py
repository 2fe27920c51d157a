# SPDX-License-Identifier: Apache-2.0
"""
A simulated arm with two cameras and a reaching task, for demo, tests and training of the demo
policy. node.py is the executable sim_robot; all else takes time steps and reads no clock. Thread
`simulate` owns arm and scene; the executor deposits commands.
"""
