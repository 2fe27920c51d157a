# SPDX-License-Identifier: Apache-2.0
class HealthCheckResponse:
    SERVING: int
    NOT_SERVING: int
