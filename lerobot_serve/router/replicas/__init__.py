# SPDX-License-Identifier: Apache-2.0
"""
One policy server (Replica) and one policy (Slot): reports, health, recent latency, counters.
Written by the executor (status), the thread `control` and the data path, always under
RoutingTable.lock.
"""
