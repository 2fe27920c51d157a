# SPDX-License-Identifier: Apache-2.0
"""
A policy that receives copies of live requests and drives no robot: sampling, joining, divergence,
qualification. The data path deposits references in ShadowFeed and never waits; everything else
runs in the thread `shadow`.
"""
