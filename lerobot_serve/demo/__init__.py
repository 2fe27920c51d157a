# SPDX-License-Identifier: Apache-2.0
"""
Runs a simulated fleet, two policies and a broken third one, and shows promotion, failover and
rollback. Called by `lerobot-serve demo`; uses only topics, services, parameters and signals. Main
thread runs phases and screen; the executor thread fills the scoreboard.
"""
