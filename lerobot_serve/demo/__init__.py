# SPDX-License-Identifier: Apache-2.0
"""
Runs a simulated fleet with three policies, one of them broken, and shows promotion, failover and
rollback. Called by `lerobot-serve demo`; uses only topics, services, parameters and signals. The
main thread runs phases and screen; the executor thread fills the scoreboard.
"""
