# SPDX-License-Identifier: Apache-2.0
"""Decodes the ROS messages of a bag for a dataset. Called by the verb. Pure; any thread."""
