# SPDX-License-Identifier: Apache-2.0
"""The middleware of a process, and faults in it."""
