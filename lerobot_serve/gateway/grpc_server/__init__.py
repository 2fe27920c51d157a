# SPDX-License-Identifier: Apache-2.0
"""What the doors that speak gRPC share: the server, its callers, and statuses of errors."""
