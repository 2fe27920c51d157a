# SPDX-License-Identifier: Apache-2.0
"""
Shared by policy kinds: hidden states by session, seeds and request inputs during prediction; the
device, the footprint of a policy, free memory, and reservations of other processes before it.

The policy server reserves before it loads; policy kinds check again. Thread: `inference`, which
loads and predicts; processes coordinate by file locks. `device` imports torch, `memory` lazily.
"""
