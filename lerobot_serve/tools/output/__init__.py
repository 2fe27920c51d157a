# SPDX-License-Identifier: Apache-2.0
"""
Output shared by several tools: text for terminals, SVG line charts, the HTML page frame.
Called by report modules and the demo.
Pure functions; any thread.
"""
