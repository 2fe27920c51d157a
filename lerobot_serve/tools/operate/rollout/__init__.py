# SPDX-License-Identifier: Apache-2.0
"""
The verbs of a rollout: its view, the loading of policies, and what the traces of routers say about
the past. The verbs and the dashboard call it, in their thread.
"""
