# SPDX-License-Identifier: Apache-2.0
"""The HTTP server: one thread with one event loop."""
