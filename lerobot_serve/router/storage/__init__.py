# SPDX-License-Identifier: Apache-2.0
"""
What survives a restart: one SQLite file in the state folder, and the decisions of operators and
canary. StoreWriter owns the thread `store`; any thread deposits, a decision waits (bounded) until
it is durable.
"""
