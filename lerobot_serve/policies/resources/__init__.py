# SPDX-License-Identifier: Apache-2.0
"""
Memory and devices: the footprint of a policy, free memory, and reservations of other processes.
The policy server reserves before it loads; policy kinds check again. Torch is imported lazily.
Thread: the one that loads a policy (`inference`); processes coordinate by file locks.
"""
