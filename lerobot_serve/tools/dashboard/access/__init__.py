# SPDX-License-Identifier: Apache-2.0
"""Who may read the page, and who may act. Plain modules."""
