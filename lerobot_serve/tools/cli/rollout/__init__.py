# SPDX-License-Identifier: Apache-2.0
"""
The steps of `lerobot-serve rollout`: each runs one and returns its exit status. Imports ROS in
functions only; the main thread.
"""
