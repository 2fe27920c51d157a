# SPDX-License-Identifier: Apache-2.0
"""
The verbs of a rollout: its rules, its view, and the loading of policies.

The verbs and the dashboard call it, in their thread.
"""
