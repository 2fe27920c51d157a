"""
Parts of which every node is built: managed lifecycle, steady clock, parameters, trigger services,
a fixed-rate loop.  Built in the main thread; callbacks run in the executor thread, transitions in
a thread of their own.
"""
