# SPDX-License-Identifier: Apache-2.0
"""
From a request to its reply: Dispatcher places and sends, RequestForwarder picks replicas, hedges
and fails over, InFlightRequests holds who owes a reply. Called by RouterRuntime. Threads `intake`
(requests), `answers` (replies) and `alarm` (timeouts), all under RoutingTable.lock; Transport and
observers are called after the lock is released.
"""
