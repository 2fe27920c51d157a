# SPDX-License-Identifier: Apache-2.0
"""
The state that survives a restart: placements, shadow records, and the decisions of operators and
canary, in a SQLite file of the state folder, or in PostgreSQL for all routers of a site.
StoreWriter runs in the thread `store`; any thread queues writes, a decision waits with a time
limit until it is durable. StateFollower reads in the thread `state` what other routers wrote.
"""
