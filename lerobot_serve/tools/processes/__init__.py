# SPDX-License-Identifier: Apache-2.0
"""
Starts the package's executables as child processes that end with this one.
Called by the demo, tests and benchmarks.
Main thread: a child is bound to the thread that starts it.
"""
