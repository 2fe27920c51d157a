# SPDX-License-Identifier: Apache-2.0
"""
The action queue: actions received and not yet executed, with their source, and everything that
depends on reply latency. The thread `request` merges chunks and reads the prefix, `tick` takes
actions, the end of an episode clears. No lock is held while arrays are copied.
"""
