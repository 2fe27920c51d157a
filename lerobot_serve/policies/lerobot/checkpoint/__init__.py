# SPDX-License-Identifier: Apache-2.0
"""
Read a checkpoint directory and check it against allow-lists before LeRobot is imported.
`loader`, doctor and replay call `read_checkpoint`. No torch except in normalization_statistics.
Stateless; any thread.
"""
