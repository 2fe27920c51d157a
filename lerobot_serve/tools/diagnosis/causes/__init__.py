# SPDX-License-Identifier: Apache-2.0
"""
The causes of a stall: each is evaluated on the facts of a window: yes, no, or no evidence, and
when it lasted. Called by `rules`. Pure functions; any thread.
"""
