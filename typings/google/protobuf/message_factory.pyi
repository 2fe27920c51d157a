# SPDX-License-Identifier: Apache-2.0
from typing import Any

from google.protobuf.message import Message

def GetMessageClass(descriptor: Any) -> type[Message]: ...
