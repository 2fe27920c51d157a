# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from typing import Any

SERVICE_NAME: str

class aio:
    class ReflectionServicer:
        def __init__(self, service_names: Iterable[str], pool: Any = ...) -> None: ...
