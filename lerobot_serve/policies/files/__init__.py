# SPDX-License-Identifier: Apache-2.0
"""
Read and check the files of a policy without running anything in them.
Each policy kind and `resources.footprint` call it while they load. No torch, any thread.
"""
