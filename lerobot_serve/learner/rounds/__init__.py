# SPDX-License-Identifier: Apache-2.0
"""
What a learner does and when: `states` and `due` are tables, `learner` runs them in one thread.
"""
