# SPDX-License-Identifier: Apache-2.0
"""
Compute what many sites need: routers, policy servers and the load of the shared store, and which
of them breaks first as a site grows (docs/plan.md). Called by `lerobot-serve plan --sites`. Pure:
virtual time and seeded generators.
"""
