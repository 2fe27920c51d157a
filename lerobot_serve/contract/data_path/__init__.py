# SPDX-License-Identifier: Apache-2.0
"""
Observation and ActionChunk, encoded and decoded by hand, so that an image is copied once and a
router reads only the envelope; and the report of executed actions. Called by every package, in any
thread.
"""
