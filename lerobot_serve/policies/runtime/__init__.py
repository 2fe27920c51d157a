# SPDX-License-Identifier: Apache-2.0
"""
Shared by policy kinds during prediction: hidden states by session, seeds, request inputs.
Called by the policies. Thread: `inference`.
"""
