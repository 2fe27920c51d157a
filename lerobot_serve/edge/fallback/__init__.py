# SPDX-License-Identifier: Apache-2.0
"""
The fallback ladder: what the robot does without fresh actions, rung by rung, and the teardown
after an episode. Called by control/controller.py in the thread `tick`; rungs are parsed from
parameters at start-up. Plain data and pure functions beside one object, Ladder, that keeps the
present rung.
"""
