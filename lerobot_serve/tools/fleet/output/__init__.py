# SPDX-License-Identifier: Apache-2.0
"""
What `up` prints: the lines of its processes, a launch file, units of systemd.

The main thread and the threads that read the output of a process.
"""
