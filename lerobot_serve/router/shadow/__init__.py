# SPDX-License-Identifier: Apache-2.0
"""
Compare a policy that receives copies of live requests with executed actions: sampling, joining,
divergence, qualification. The data path queues references in ShadowFeed without waiting; the rest
runs in the thread `shadow`.
"""
