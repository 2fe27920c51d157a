# SPDX-License-Identifier: Apache-2.0

from enum import IntEnum

class LoggingSeverity(IntEnum):
    UNSET = 0
    DEBUG = 10
    INFO = 20
    WARN = 30
    ERROR = 40
    FATAL = 50
