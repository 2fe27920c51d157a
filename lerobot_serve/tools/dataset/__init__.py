# SPDX-License-Identifier: Apache-2.0
"""
Makes a LeRobotDataset of bags; docs/dataset.md. Called by `lerobot-serve dataset`, in a process
with LeRobot and never on a robot. One pass over the bags decides which rows a dataset has and
which messages each row needs (`bag_index`, `executed`, `as_of`); a second one feeds them. `ros/`
decodes messages; the rest is plain. One thread.
"""
