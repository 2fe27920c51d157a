# SPDX-License-Identifier: Apache-2.0
"""
Verbs on all robots at the same time, and the table of robots. The caller's thread, and one for
each robot.
"""
