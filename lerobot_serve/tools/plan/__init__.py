# SPDX-License-Identifier: Apache-2.0
"""
Compute how many policy servers a fleet needs, by formula and by discrete-event simulation; of many
sites (`--sites`) also routers, the load of the shared store, and which of them breaks first as a
site grows (docs/plan.md). Called by `lerobot-serve plan`. Pure: virtual time and seeded
generators.
"""
