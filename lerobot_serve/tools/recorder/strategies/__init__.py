# SPDX-License-Identifier: Apache-2.0
"""One writer for each strategy. The thread `writing`; time is the monotonic clock."""
