# SPDX-License-Identifier: Apache-2.0

from enum import Enum
from typing import Any

class Parameter:
    class Type(Enum):
        NOT_SET = 0
        BOOL = 1
        INTEGER = 2
        DOUBLE = 3
        STRING = 4
        BYTE_ARRAY = 5
        BOOL_ARRAY = 6
        INTEGER_ARRAY = 7
        DOUBLE_ARRAY = 8
        STRING_ARRAY = 9

    def __init__(self, name: str, type_: Type | None = ..., value: Any = ...) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def type_(self) -> Type: ...
    @property
    def value(self) -> Any: ...
    def to_parameter_msg(self) -> Any: ...

def parameter_value_to_python(parameter_value: Any) -> Any: ...
