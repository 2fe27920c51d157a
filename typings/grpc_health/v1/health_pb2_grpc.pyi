# SPDX-License-Identifier: Apache-2.0
from typing import Any

def add_HealthServicer_to_server(servicer: Any, server: Any) -> None: ...
