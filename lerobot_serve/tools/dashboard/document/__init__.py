# SPDX-License-Identifier: Apache-2.0
"""The document of the fleet, its patches, and what happened in it. Plain modules."""
