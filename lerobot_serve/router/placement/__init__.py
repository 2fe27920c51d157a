# SPDX-License-Identifier: Apache-2.0
"""
Which slot an episode runs in: the split, the eligibility table, and the table of placed episodes.
Called by data_path (requests of sessions) and by api (PredictChunk goals). Pure, or under
RoutingTable.lock; no threads.
"""
