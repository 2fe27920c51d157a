# SPDX-License-Identifier: Apache-2.0
"""
The contract of policy servers and routers: a server converts session messages, publishes chunks on
reply topics and offers PredictChunk; service_call is for clients. Called by the nodes.
"""
