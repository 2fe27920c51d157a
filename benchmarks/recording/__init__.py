# SPDX-License-Identifier: Apache-2.0
"""Recording of robots and conversion of the bags."""
