# SPDX-License-Identifier: Apache-2.0
"""
What a learner keeps in its folder: `database` in one SQLite file. One thread at a time.
"""
