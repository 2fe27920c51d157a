# SPDX-License-Identifier: Apache-2.0
"""What traces and captures say about an incident."""
