# SPDX-License-Identifier: Apache-2.0
"""
What a learner does and when: `states` has tables, `learner` runs them in one thread.
"""
