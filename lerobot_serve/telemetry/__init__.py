# SPDX-License-Identifier: Apache-2.0
"""
Serve Prometheus metrics, /healthz and /readyz over HTTP; limit repeated log lines. Each node
creates one HttpEndpoint; its daemon thread `metrics` reads the counters of the node. LogThrottle:
any thread logs, one thread flushes.
"""
