# SPDX-License-Identifier: Apache-2.0
"""
LeRobot policies with random weights, written as LeRobot writes them. No network.
Used by benchmarks and by test/support/policies; imports LeRobot when the first one is built.
"""
