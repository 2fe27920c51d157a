# SPDX-License-Identifier: Apache-2.0
"""
What a learner keeps in its folder: `database` in one SQLite file, `folder_lock` so that one
learner at a time uses the folder. One thread at a time.
"""
