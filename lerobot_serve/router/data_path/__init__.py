# SPDX-License-Identifier: Apache-2.0
"""
Route requests to replicas and relay their replies: Dispatcher places and sends, RequestForwarder
selects replicas, hedges and fails over, InFlightRequests tracks pending replies, UnchargedRequests
those that quotas are charged for. Called by RouterCore in the threads `intake` (requests),
`replies` and `alarm` (timeouts), under RoutingTable.lock. Transport and observers are called after
the lock is released.
"""
