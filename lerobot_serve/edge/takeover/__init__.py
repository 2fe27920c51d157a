# SPDX-License-Identifier: Apache-2.0
"""
Takeover: a person commands the robot with a leader arm or a joystick, instead of the policy.
The services of the node begin and end it, the thread `inputs` deposits what the person sends, and
the tick thread reads it once in each control step. Plain; edge.ros decodes the messages.
"""
