# SPDX-License-Identifier: Apache-2.0
"""One minute of one robot. Plain modules."""
