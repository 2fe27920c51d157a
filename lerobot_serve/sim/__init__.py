# SPDX-License-Identifier: Apache-2.0
"""
A simulated arm with two cameras and a reaching task, for the demo, for tests and for training the
demo policy. node.py is the executable sim_robot; the other modules read no clock. The thread
`simulate` owns arm and scene; the thread `commands` sets commands.
"""
