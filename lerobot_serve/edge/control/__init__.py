# SPDX-License-Identifier: Apache-2.0
"""
The control step: control authority, the next action, and the safety cage.
Called by `ControlLoop.run`, the body of the thread `tick`; operators and episodes set
OperatorControl from the executor. Plain: no clock, no ROS; state, commands and the stop service
come in as callables.
"""
