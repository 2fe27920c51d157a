# SPDX-License-Identifier: Apache-2.0
"""The folder of a recorder: its lock, the names of bags, and the recovery of cut bags."""
