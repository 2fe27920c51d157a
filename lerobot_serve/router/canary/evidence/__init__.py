# SPDX-License-Identifier: Apache-2.0
"""
The evidence of a canary: episodes by arm, the sequential test, and its forecast.

The canary calls it in the executor thread; tools/plan simulates with it.
"""
