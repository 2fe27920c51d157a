# SPDX-License-Identifier: Apache-2.0
"""
Compute how many policy servers a fleet needs, by formula and by discrete-event simulation
(docs/plan.md). Called by `lerobot-serve plan`. Pure: virtual time and a seeded generator.
"""
