# SPDX-License-Identifier: Apache-2.0
"""
Building blocks of every node: managed lifecycle, steady clock, parameters, trigger services, a
fixed-rate loop.  Built in the main thread; callbacks run in the executor thread, transitions in
a thread of their own.
"""
