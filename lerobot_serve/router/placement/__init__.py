# SPDX-License-Identifier: Apache-2.0
"""
Assign episodes to slots: the split, the eligibility table and the table of placements. Called by
data_path (requests of sessions) and by api (PredictChunk goals). Pure, or under RoutingTable.lock;
no threads.
"""
