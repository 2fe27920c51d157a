# SPDX-License-Identifier: Apache-2.0
"""A played fleet for the conductor of a loop."""
