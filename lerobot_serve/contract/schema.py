# SPDX-License-Identifier: Apache-2.0
"""The enumerations of the data path and of sessions, under their own names. Any thread."""

from __future__ import annotations

from lerobot_serve.contract.records import (
    ActionChunk,
    CameraImage,
    OpenSessionResponse,
    RequestHeader,
    ServerStatus,
)

MsgType = RequestHeader.MsgType
# bits without a name pass through unread
Flag = RequestHeader.Flag
Codec = CameraImage.Codec
Status = ActionChunk.Status
# the memory of a policy between requests
StateClass = ServerStatus.StateClass
# why a session was not opened
Refusal = OpenSessionResponse.Code
