# SPDX-License-Identifier: Apache-2.0
"""
What a measurement means: cases, percentiles, goals, the page and its charts.
Plain functions without ROS; any thread.
"""
