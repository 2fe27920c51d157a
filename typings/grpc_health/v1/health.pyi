# SPDX-License-Identifier: Apache-2.0
from typing import Any

SERVICE_NAME: str

class aio:
    class HealthServicer:
        async def set(self, service: str, status: Any) -> None: ...
        async def enter_graceful_shutdown(self) -> None: ...
