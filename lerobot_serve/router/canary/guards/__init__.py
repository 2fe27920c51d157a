# SPDX-License-Identifier: Apache-2.0
"""
The guards of a canary: what rolls back at once, and what blocks a promotion.

The canary calls them in the executor thread.
"""
