# SPDX-License-Identifier: Apache-2.0
"""
From a received request to its reply: queue, scheduler, validation, policy, sender. `core` enqueues
on the `intake` thread (one-shot requests: executor thread). The `inference` thread runs
inference_loop: it takes batches, validates them, runs the policy and sends the replies; it also
loads the policy.
"""
