# SPDX-License-Identifier: Apache-2.0
"""
Publish and record the state of the router: HealthMonitor (timers of the executor), reports,
Prometheus metrics (thread of the endpoint), the trace and drop counters (any thread).
"""
