# SPDX-License-Identifier: Apache-2.0
"""
The link to a gateway: its PolicyService over gRPC, for networks that pass only HTTP/2.

`server_link` -> `channel` -> `messages`. This folder is imported when a
client connects to grpc:// or grpcs://: it needs grpcio and protobuf.
"""
