# SPDX-License-Identifier: Apache-2.0
"""
PolicyService over gRPC: Predict and PredictStream, with reflection and health.

`door` -> `service`, `health` -> `conversion` -> `messages`; policy_service.proto is for clients.
"""
