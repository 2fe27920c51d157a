# SPDX-License-Identifier: Apache-2.0
"""
The node on a robot: sends observations, queues actions and commands the robot. Holds no weights,
imports no torch. Direction: inputs -> session -> queue -> control (with fallback and the cage) ->
robot; observability/ observes. wiring.py builds the plain parts, node.py connects them
to ROS. Threads: executor and `replies` deposit, `request` runs session/, `tick` runs control/,
`trace` and `decisions` write.
"""
