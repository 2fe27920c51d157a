# SPDX-License-Identifier: Apache-2.0
"""The link of the gateway over ROS 2."""
