# SPDX-License-Identifier: Apache-2.0
"""The messages of a learner, from and to plain data. Pure functions; any thread."""
