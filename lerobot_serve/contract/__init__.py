# SPDX-License-Identifier: Apache-2.0
"""
The messages that nodes exchange, as plain objects and as bytes, without ROS. `records` is written
from the interface files, the only place where a field is named; `codec` encodes and decodes any of
them; `data_path` has the two that carry images and actions. Also image codecs, names and limits.
Called by every package, in any thread.
"""
