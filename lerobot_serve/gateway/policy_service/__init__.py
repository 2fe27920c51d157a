# SPDX-License-Identifier: Apache-2.0
"""
PolicyService over gRPC: Predict and PredictStream, with reflection and health.

`door` -> `conversion`; policy_service.proto is for clients, and its messages are in
`contract.services.policy_service`.
"""
