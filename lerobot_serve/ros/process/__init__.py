# SPDX-License-Identifier: Apache-2.0
"""
The process around a node: command line, ROS context, executor, threads, signals, allocator, Fast
DDS profile.  Called by main() of each node in the main thread. NodeRuntime starts and joins every
thread of the process.
"""
