# SPDX-License-Identifier: Apache-2.0
"""
The state that survives a restart: one SQLite file in the state folder with placements, shadow
records, and the decisions of operators and canary. StoreWriter runs in the thread `store`; any
thread queues writes, a decision waits with a time limit until it is durable.
"""
