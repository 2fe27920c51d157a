# SPDX-License-Identifier: Apache-2.0
"""
One session of the Python client: what it knows, its turns, and its calls as plans.

The clients call it, in the thread or the event loop of their caller.
"""
