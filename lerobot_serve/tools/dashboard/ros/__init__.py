# SPDX-License-Identifier: Apache-2.0
"""Subscriptions and calls of the dashboard."""
