# SPDX-License-Identifier: Apache-2.0
"""
The executables and verbs of the package, and child processes that end with this one.
Called by verbs, the demo, tests and benchmarks.
Main thread: a child is bound to the thread that starts it.
"""
