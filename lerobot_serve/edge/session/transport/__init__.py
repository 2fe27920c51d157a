# SPDX-License-Identifier: Apache-2.0
"""
The transport of requests between a robot and its servers, over ROS 2 or Zenoh.

The request thread sends; replies arrive in the inbox.
"""
