# SPDX-License-Identifier: Apache-2.0
"""
What the doctor reads from a running ROS graph: inputs, commands, controllers.

The examination calls it; the node spins in a thread of its own.
"""
