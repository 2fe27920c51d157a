# SPDX-License-Identifier: Apache-2.0
"""
One file per verb: parse options, call one function of a tool, print, return the exit status. A
verb never imports another verb. Verbs are found by entry point, so other packages can add some.
The main thread.
"""
