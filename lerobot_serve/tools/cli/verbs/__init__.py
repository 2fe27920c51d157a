# SPDX-License-Identifier: Apache-2.0
"""
One file a verb: parse options, call one function of a tool, print, return the exit status.
A verb never imports another verb. Found by entry point, so another package can add one.
The main thread.
"""
