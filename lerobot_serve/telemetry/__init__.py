# SPDX-License-Identifier: Apache-2.0
"""
Serve Prometheus metrics, /healthz and /readyz over HTTP; limit log lines that repeat.  Each node
builds one HttpEndpoint; its daemon thread `metrics` reads the counters of the node. LogThrottle:
any thread logs, one flushes.
"""
