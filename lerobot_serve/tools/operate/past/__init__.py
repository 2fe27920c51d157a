# SPDX-License-Identifier: Apache-2.0
"""
What a fleet did, from the traces of its routers: `rollout history`.

The verb calls it in the main thread.
"""
