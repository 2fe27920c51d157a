# SPDX-License-Identifier: Apache-2.0
"""
Encode and decode the services of the contract, for links and clients without ROS.

Pure; any thread.
"""
