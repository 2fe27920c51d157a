"""
Serve Prometheus metrics, /healthz and /readyz over HTTP; limit log lines that repeat.  Each node
builds one HttpEndpoint; its daemon thread `metrics` reads what the node counts. LogThrottle: any
thread logs, one flushes.
"""
