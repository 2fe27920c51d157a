# SPDX-License-Identifier: Apache-2.0
"""
Encode and decode messages without ROS: CDR bytes to numpy arrays and back, image codecs, names,
the session request.  Observation and ActionChunk are encoded and decoded directly, so that an
image is copied once and a router reads only the envelope. Called by every room, in any thread.
Tests compare the bytes with those of the generated messages.
"""
