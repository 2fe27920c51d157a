# SPDX-License-Identifier: Apache-2.0
"""Trains versions of a policy on recorded episodes, round by round."""
