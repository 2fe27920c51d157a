# SPDX-License-Identifier: Apache-2.0
"""
What several tools print and draw: text for terminals, SVG line charts, the HTML page frame.
Called by report modules and the demo.
Pure functions; any thread.
"""
