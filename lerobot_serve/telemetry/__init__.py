"""
Figures for Prometheus, and whether a node is alive and ready, over HTTP.

    endpoint  /metrics, /healthz and /readyz of one node
    buckets   durations counted in the buckets of a histogram
    settings  the parameters of an endpoint
    families  making the families of metrics, all under one prefix

Nothing is counted here: metrics are read from what a node counts anyway, when somebody asks.
"""
