# SPDX-License-Identifier: Apache-2.0
from typing import Any

from google.protobuf.message import Message

class DescriptorPool:
    def Add(self, file: Message) -> None: ...
    def FindMessageTypeByName(self, name: str) -> Any: ...
