# SPDX-License-Identifier: Apache-2.0
"""
Receive messages: with a checked decode in the executor, or in a dedicated thread that bypasses
it; convert image messages.  Called by the nodes. dedicated_subscription runs in the thread that
calls its run(); everything else is pure.
"""
