"""
Memory and devices: what a policy needs, whether it fits, and who else is loading.
The policy server reserves before it loads; policy kinds check again. Torch is imported lazily.
Thread: the one that loads a policy (`inference`); processes coordinate by file locks.
"""
