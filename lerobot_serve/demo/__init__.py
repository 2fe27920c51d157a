# SPDX-License-Identifier: Apache-2.0
"""
Runs a simulated fleet with three policies, one of them broken, and shows failover, promotion and
rollback. Called by `lerobot-serve demo`. The acts run verbs of `lerobot-serve` as processes and
print each; the figures come from topics and, after the run, from traces. The main thread runs acts
and screen; the executor thread fills the scoreboard.
"""
