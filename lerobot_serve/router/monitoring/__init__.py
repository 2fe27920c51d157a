# SPDX-License-Identifier: Apache-2.0
"""
What the router publishes and records: HealthMonitor (timers of the executor), reports, Prometheus
metrics (thread of the endpoint), the trace (any thread deposits a record), drop counters (any
thread).
"""
