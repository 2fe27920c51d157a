# SPDX-License-Identifier: Apache-2.0
"""
Replace the served policy without a stop: load and warm up another one of the same kind and
contract beside it, then switch between two batches.

`policy_swap` owns the thread `swap`, `contract` and `swap_folder` are pure but for the disk; the
node calls them. No ROS.
"""
