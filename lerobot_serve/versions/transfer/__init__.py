# SPDX-License-Identifier: Apache-2.0
"""
Move versions between stores: `fetching` reads a source, which is a folder or an HTTP server.

`lerobot-serve versions fetch` and `serve` call it. A fetch runs in the thread of its caller; the
HTTP server answers in a bounded number of threads of its own.
"""
