# SPDX-License-Identifier: Apache-2.0
"""
What a run of the demo shows and leaves: screen, summary, report and animation.

`run.py` calls it in the main thread; the node of the demo deposits what it sees.
"""
