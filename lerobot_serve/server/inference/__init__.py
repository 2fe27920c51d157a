# SPDX-License-Identifier: Apache-2.0
"""
From a received request to its reply: queue, scheduler, validation, policy.
`core` enqueues on the `intake` thread (one-shot requests: executor thread).
The `inference` thread takes batches, validates them and runs the policy.
"""
