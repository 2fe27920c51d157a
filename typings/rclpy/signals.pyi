# SPDX-License-Identifier: Apache-2.0

from enum import IntEnum

class SignalHandlerOptions(IntEnum):
    NO = 0
    SIGINT = 1
    SIGTERM = 2
    ALL = 3
