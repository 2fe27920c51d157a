# SPDX-License-Identifier: Apache-2.0
"""
The rollout of a candidate: steps of rising share, a sequential test on episodes, guards on
operational figures. CanaryController is called by RouterCore several times a second; Canary never
reads a clock. Executor thread only. Nothing here imports slots or requests but controller.py.
"""
