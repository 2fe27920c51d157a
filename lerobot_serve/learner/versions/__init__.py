# SPDX-License-Identifier: Apache-2.0
"""
The versions of a learner: `parents` chooses what a round builds on, `verdicts` reads what the
router's canary decided. Pure; any thread.
"""
