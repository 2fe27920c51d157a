"""
A node's parameters: declared from their dataclass, checked by it, changed all or nothing.

Runs in the node's executor thread; `current` may be read from any thread, since it is replaced as
a whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.node import Node
from rclpy.parameter import Parameter

from lerobot_serve.parameters import build, changed, ParameterError, Spec, specs

T = TypeVar('T')
STANDARD = ('use_sim_time', 'start_type_description_service')
INT_LIMIT = 2**31 - 1


class ParameterServer(Generic[T]):
    """Declares a dataclass of parameters on a node and keeps its current value."""

    def __init__(
        self,
        node: Node,
        parameters: type[T],
        is_unconfigured: Callable[[], bool] = lambda: False,
    ) -> None:
        """
        Raise ParameterError for a value or name from the command line or a file that is wrong.

        `is_unconfigured` tells whether parameters `on_configure` may change now.
        """
        self._is_unconfigured = is_unconfigured
        self._names = {spec.name for spec in specs(parameters)}
        self._listeners: list[Callable[[T], None]] = []
        given = {name: value.value for name, value in node._parameter_overrides.items()}
        self.current: T = build(
            parameters, {n: v for n, v in given.items() if not _is_standard(n)}
        )
        for spec in specs(parameters):
            value = getattr(self.current, spec.name)
            node.declare_parameter(
                spec.name,
                list(value) if spec.kind is tuple else value,
                describe(spec),
                ignore_override=True,
            )
        node.add_on_set_parameters_callback(self._validate)
        node.add_post_set_parameters_callback(self._apply)

    def on_change(self, listener: Callable[[T], None]) -> None:
        """Call `listener` with the new value after each accepted change."""
        self._listeners.append(listener)

    def _ours(self, wanted: list[Parameter]) -> dict[str, object]:
        return {p.name: p.value for p in wanted if p.name in self._names}

    def _validate(self, wanted: list[Parameter]) -> SetParametersResult:
        try:
            changed(self.current, self._ours(wanted), unconfigured=self._is_unconfigured())
        except ParameterError as error:
            return SetParametersResult(successful=False, reason=str(error))
        return SetParametersResult(successful=True)

    def _apply(self, accepted: list[Parameter]) -> None:
        ours = self._ours(accepted)
        if ours:
            self.current = changed(self.current, ours, unconfigured=self._is_unconfigured())
            for listener in self._listeners:
                listener(self.current)


def _is_standard(name: str) -> bool:
    return name in STANDARD or name.startswith('qos_overrides.')


def describe(spec: Spec) -> ParameterDescriptor:
    """Return the descriptor that `ros2 param describe` and rqt show."""
    unit = f' [{spec.unit}]' if spec.unit else ''
    descriptor = ParameterDescriptor(
        name=spec.name,
        description=f'{spec.text}{unit}',
        read_only=not (spec.live or spec.on_configure),
        # so that a value of the wrong type reaches our check, whose text names the parameter
        dynamic_typing=True,
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
