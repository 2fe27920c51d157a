# SPDX-License-Identifier: Apache-2.0
"""
Predictions for the newest observation while a robot moves.

`Session.stream` of either client builds them; each has one thread or one task.
"""
