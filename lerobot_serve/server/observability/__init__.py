# SPDX-License-Identifier: Apache-2.0
"""
Trace records, request captures, statistics and metrics of the server.
Node, `core` and `session_service` notify `request_observer`; nothing here blocks or raises.
Threads: callers only enqueue; `trace` and `capture` write; the HTTP thread reads `metrics`.
"""
