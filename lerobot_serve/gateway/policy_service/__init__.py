# SPDX-License-Identifier: Apache-2.0
"""
PolicyService over gRPC: Predict and PredictStream, with reflection and health.

`door` -> `conversion`; its messages are in `contract.services.policy_service`.
"""
