# SPDX-License-Identifier: Apache-2.0
"""
The acts of the demo, and the commands that they run.

`run.py` calls them in the main thread.
"""
