# SPDX-License-Identifier: Apache-2.0
"""
The demo's trained policy `builtin.reach`: `policy` loads and runs `network`, and `settings` reads
its policy.json. Loaded through the registry. Thread: `inference`, or any with one CPU thread.
"""
