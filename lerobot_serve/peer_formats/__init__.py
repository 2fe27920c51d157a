# SPDX-License-Identifier: Apache-2.0
"""
Encodings of other projects, read with bounds: arrays in msgpack and npy, and LeRobot's pickles.
Shared by the gateway, whose clients write them, and by policies of the kinds `openpi`, `groot` and
`lerobot_async`, whose servers write them. Pure functions; any thread. Reading executes nothing.
"""
