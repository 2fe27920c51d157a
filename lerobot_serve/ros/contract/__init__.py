# SPDX-License-Identifier: Apache-2.0
"""
The contract of policy servers and routers, for both ends.  A client opens sessions and publishes
observations (session_client); a server converts session messages, publishes chunks on reply topics
and offers PredictChunk. Called by the nodes; session_client by any thread but the executor's.
"""
