# SPDX-License-Identifier: Apache-2.0
"""
Policies without a model, described by a text such as `joints=6,chunk=100`. For measurements,
tests and demos; loaded through the registry as `null` and `recurrent`. No torch. Thread:
`inference`.
"""
