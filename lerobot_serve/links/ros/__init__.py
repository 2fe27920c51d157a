# SPDX-License-Identifier: Apache-2.0
"""The link over ROS 2, and the clients of a node over both links. See `links` for threads."""
