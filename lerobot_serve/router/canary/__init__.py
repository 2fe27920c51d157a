# SPDX-License-Identifier: Apache-2.0
"""
The rollout of a candidate: steps of rising share, a sequential test on episodes, guards on
operational figures. RouterCore calls CanaryController several times per second; Canary reads no
clock. Executor thread only. Only controller.py imports slots.
"""
