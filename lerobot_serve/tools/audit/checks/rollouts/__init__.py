# SPDX-License-Identifier: Apache-2.0
"""Checks of rollouts: which policy may drive, and on what evidence it is promoted."""
