# SPDX-License-Identifier: Apache-2.0
"""
The learners of a fleet: their states as plain data and as text, and when one counts as silent.

Pure. The verbs of a rollout and the dashboard call it, in their threads.
"""
