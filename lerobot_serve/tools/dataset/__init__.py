# SPDX-License-Identifier: Apache-2.0
"""
Makes a LeRobotDataset of bags; docs/dataset.md. Called by `lerobot-serve dataset`, in a process
with LeRobot and never on a robot. `ros/` decodes messages; the rest is plain. One thread.
"""
