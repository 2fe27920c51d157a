# SPDX-License-Identifier: Apache-2.0
"""
Episodes that recorders have on their disks: what a recorder announces of one, and how the bags in
a folder are found again. Called by the recorder, and by what learns from episodes. Plain functions
and data; any thread. A bag is read, and the only file that is written is the note with its hash.
"""
