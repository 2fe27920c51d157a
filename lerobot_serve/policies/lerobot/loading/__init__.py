"""
Builds the network in its precision, checks its weights, describes the policy, runs it once.
`loader` calls each step in turn. Thread: the one that loads (`inference`).
"""
