# SPDX-License-Identifier: Apache-2.0
"""
Declare and check the parameters of a node from its dataclass; changes apply all or none.

ROS sets parameters in the executor thread, the node its own in any thread. `current` may be read
by any thread, since it is replaced as a whole.
"""

from __future__ import annotations

from collections.abc import Callable
import threading
from typing import Any, Generic, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    ParameterType,
    ParameterValue,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter

from lerobot_serve.parameters import (
    build_parameters,
    parameter_specs,
    ParameterError,
    ParameterSpec,
    with_changes,
)

T = TypeVar('T')
STANDARD = ('use_sim_time', 'start_type_description_service')
INT_LIMIT = 2**31 - 1
EMPTY_LIST = ParameterValue(type=ParameterType.PARAMETER_STRING_ARRAY)
ROS_TYPES = {
    bool: Parameter.Type.BOOL,
    int: Parameter.Type.INTEGER,
    float: Parameter.Type.DOUBLE,
    str: Parameter.Type.STRING,
    tuple: Parameter.Type.STRING_ARRAY,
}


class _Change(threading.local):
    """The change in progress in this thread: whether the node makes it, why it is rejected."""

    is_own = False
    # the node changes what it has configured itself
    is_reconfigured = False
    refusal: ParameterError | None = None


class NodeParameters(Generic[T]):
    """Declares a dataclass of parameters on a node and holds the current values."""

    def __init__(
        self,
        node: Node,
        parameters: type[T],
        is_unconfigured: Callable[[], bool] = lambda: False,
        check: Callable[[T, T], None] | None = None,
    ) -> None:
        """
        Raise ParameterError for an invalid value or name from the command line or a file.

        `is_unconfigured` returns whether `on_configure` parameters may change now. `check`
        receives the current and the requested values; when it raises ParameterError, nothing
        changes.
        """
        self._node, self._is_unconfigured, self._check = node, is_unconfigured, check
        self._change, self._applying = _Change(), threading.Lock()
        self._specs = {spec.name: spec for spec in parameter_specs(parameters)}
        self._listeners: list[Callable[[T], None]] = []
        given = {
            name: self._given(name, value)
            for name, value in node._parameter_overrides.items()
            if not _is_standard(name)
        }
        self.current: T = build_parameters(parameters, given)
        for spec in self._specs.values():
            self._declare(spec, getattr(self.current, spec.field))
        node.add_pre_set_parameters_callback(self._convert_types)
        node.add_on_set_parameters_callback(self._validate)
        node.add_post_set_parameters_callback(self._apply)

    def _given(self, name: str, given: Parameter) -> Any:
        """Return a value of the command line or a file; an empty list arrives there as NOT_SET."""
        spec = self._specs.get(name)
        unset = given.type_ == Parameter.Type.NOT_SET
        return () if unset and spec and spec.kind is tuple else given.value

    def _declare(self, spec: ParameterSpec, value: Any) -> None:
        if value != ():
            value = list(value) if spec.kind is tuple else value
            self._node.declare_parameter(
                spec.name, value, parameter_descriptor(spec), ignore_override=True
            )
            return
        # rclpy cannot infer the element type of an empty list
        any_type = ParameterDescriptor(dynamic_typing=True)
        self._node.declare_parameter(spec.name, [], any_type, ignore_override=True)
        self._node.set_descriptor(spec.name, parameter_descriptor(spec), EMPTY_LIST)

    def on_change(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the new value after each accepted change."""
        self._listeners.append(listener)

    def set_reconfigured(self, **values: Any) -> None:
        """
        Change parameters that may change before configuring only, to what the node has configured
        itself. Otherwise as set_own.
        """
        self._change.is_reconfigured = True
        try:
            self.set_own(**values)
        finally:
            self._change.is_reconfigured = False

    def set_own(self, **values: Any) -> None:
        """
        Change parameters by field on behalf of the node: all or none, published as parameter
        events, without calling `check`. Raises ParameterError.
        """
        named = {spec.field: spec for spec in self._specs.values()}
        wanted = [_as_parameter(named[field], value) for field, value in values.items()]
        self._change.is_own = True
        try:
            result = self._node.set_parameters_atomically(wanted)
        finally:
            self._change.is_own = False
        if not result.successful:
            raise ParameterError(result.reason)

    def _changed(self, own: dict[str, Any]) -> T:
        may_change = self._change.is_reconfigured or self._is_unconfigured()
        return with_changes(self.current, own, unconfigured=may_change)

    def _own_values(self, wanted: list[Parameter]) -> dict[str, Any]:
        return {p.name: p.value for p in wanted if p.name in self._specs}

    def _convert_types(self, wanted: list[Parameter]) -> list[Parameter]:
        """
        Return the requested values in the declared types, which never change: 2 for a double is
        2.0.

        A value that cannot be converted is replaced by the current one, and `_validate` rejects
        the change with a text that names the parameter; rclpy's own text does not.
        """
        self._change.refusal = None
        return [self._as_declared(each) for each in wanted]

    def _as_declared(self, wanted: Parameter) -> Parameter:
        spec = self._specs.get(wanted.name)
        if spec is None:
            return wanted
        try:
            return _as_parameter(spec, wanted.value)
        except ParameterError as error:
            self._change.refusal = self._change.refusal or error
            return _as_parameter(spec, getattr(self.current, spec.field))

    def _validate(self, wanted: list[Parameter]) -> SetParametersResult:
        own = self._own_values(wanted)
        try:
            if self._change.refusal:
                raise self._change.refusal
            new = self._changed(own)
            if self._check and own and not self._change.is_own:
                self._check(self.current, new)
        except ParameterError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _apply(self, accepted: list[Parameter]) -> None:
        own = self._own_values(accepted)
        if own:
            # the node may change its own parameters in another thread
            with self._applying:
                new = self._changed(own)
                self.current = new
            for listener in self._listeners:
                listener(new)


def _as_parameter(spec: ParameterSpec, value: Any) -> Parameter:
    """Return the checked value as a ROS parameter. Raises ParameterError."""
    value = spec.check(value)
    # rclpy cannot infer the element type of an empty list
    return Parameter(spec.name, ROS_TYPES[spec.kind], list(value) if spec.kind is tuple else value)


def _is_standard(name: str) -> bool:
    return name in STANDARD or name.startswith('qos_overrides.')


def parameter_descriptor(spec: ParameterSpec) -> ParameterDescriptor:
    """Return the descriptor for `ros2 param describe` and rqt."""
    unit = f' [{spec.unit}]' if spec.unit else ''
    descriptor = ParameterDescriptor(
        name=spec.name,
        description=f'{spec.text}{unit}',
        type=ROS_TYPES[spec.kind].value,
        read_only=not (spec.live or spec.on_configure),
        additional_constraints=f'must be {spec.allowed}',
    )
    low = -INT_LIMIT if spec.low is None else spec.low
    high = INT_LIMIT if spec.high is None else spec.high
    if spec.kind is int:
        descriptor.integer_range = [IntegerRange(from_value=int(low), to_value=int(high))]
    if spec.kind is float:
        descriptor.floating_point_range = [
            FloatingPointRange(from_value=float(low), to_value=float(high))
        ]
    return descriptor
