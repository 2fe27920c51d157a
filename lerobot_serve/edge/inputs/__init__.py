# SPDX-License-Identifier: Apache-2.0
"""
Inputs of the robot: the latest message of each, the history for a policy, checks for frozen or
stale inputs, frames in wire form. The executor deposits messages unopened; `tick` records the
history; `request` opens, checks and encodes them for one observation.
"""
