# SPDX-License-Identifier: Apache-2.0
"""
Aggregates traces and bags by role, slot and policy: counts, quantiles, time series.
Called by `lerobot-serve stats`; prints a table, JSON or one HTML file.
One thread; memory grows with slots, policies and clients, not with lines.
"""
