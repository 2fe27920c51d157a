# SPDX-License-Identifier: Apache-2.0

from collections.abc import Callable, Iterator
from typing import Any

from rclpy.callback_groups import CallbackGroup
from rclpy.client import Client
from rclpy.clock import Clock
from rclpy.context import Context
from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.executors import Executor
from rclpy.impl.rcutils_logger import RcutilsLogger
from rclpy.parameter import Parameter
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from rclpy.qos_overriding_options import QoSOverridingOptions
from rclpy.service import Service
from rclpy.subscription import Subscription
from rclpy.timer import Timer
from rclpy.topic_endpoint_info import TopicEndpointInfo

class Node:
    _parameter_overrides: dict[str, Parameter]
    def __init__(
        self,
        node_name: str,
        *,
        context: Context | None = ...,
        cli_args: list[str] | None = ...,
        namespace: str | None = ...,
        use_global_arguments: bool = ...,
        enable_rosout: bool = ...,
        start_parameter_services: bool = ...,
        parameter_overrides: list[Parameter] | None = ...,
    ) -> None: ...
    @property
    def context(self) -> Context: ...
    # rclpy: None until the node is added to one; every node here is, before a callback runs
    @property
    def executor(self) -> Executor: ...
    def get_clock(self) -> Clock: ...
    def get_fully_qualified_name(self) -> str: ...
    def get_logger(self) -> RcutilsLogger: ...
    def get_name(self) -> str: ...
    def get_namespace(self) -> str: ...
    def destroy_node(self) -> None: ...
    @property
    def waitables(self) -> Iterator[object]: ...

    # parameters
    def add_on_set_parameters_callback(
        self, callback: Callable[[list[Parameter]], Any]
    ) -> None: ...
    def add_post_set_parameters_callback(
        self, callback: Callable[[list[Parameter]], None]
    ) -> None: ...
    def add_pre_set_parameters_callback(
        self, callback: Callable[[list[Parameter]], list[Parameter]]
    ) -> None: ...
    def declare_parameter(
        self, name: str, value: Any = ..., descriptor: Any = ..., ignore_override: bool = ...
    ) -> Parameter: ...
    def get_parameter(self, name: str) -> Parameter: ...
    def set_descriptor(self, name: str, descriptor: Any, alternative_value: Any = ...) -> Any: ...
    def set_parameters(self, parameter_list: list[Parameter]) -> list[Any]: ...
    def set_parameters_atomically(self, parameter_list: list[Parameter]) -> Any: ...

    # topics
    def create_publisher(
        self,
        msg_type: type[Any],
        topic: str,
        qos_profile: QoSProfile,
        *,
        callback_group: CallbackGroup | None = ...,
        event_callbacks: PublisherEventCallbacks | None = ...,
        qos_overriding_options: QoSOverridingOptions | None = ...,
    ) -> Publisher: ...
    def create_subscription(
        self,
        msg_type: type[Any],
        topic: str,
        callback: Callable[[Any], None] | Callable[[bytes, int], None],
        qos_profile: QoSProfile,
        *,
        callback_group: CallbackGroup | None = ...,
        event_callbacks: SubscriptionEventCallbacks | None = ...,
        qos_overriding_options: QoSOverridingOptions | None = ...,
        raw: bool = ...,
    ) -> Subscription: ...
    def destroy_publisher(self, publisher: Publisher) -> bool: ...
    def destroy_subscription(self, subscription: Subscription) -> bool: ...
    def count_publishers(self, topic_name: str) -> int: ...
    def count_subscribers(self, topic_name: str) -> int: ...
    def get_publishers_info_by_topic(
        self, topic_name: str, no_mangle: bool = ...
    ) -> list[TopicEndpointInfo]: ...
    def get_subscriptions_info_by_topic(
        self, topic_name: str, no_mangle: bool = ...
    ) -> list[TopicEndpointInfo]: ...
    def get_topic_names_and_types(
        self, no_demangle: bool = ...
    ) -> list[tuple[str, list[str]]]: ...
    def resolve_topic_name(self, topic: str, *, only_expand: bool = ...) -> str: ...

    # services
    def create_client(
        self,
        srv_type: type[Any],
        srv_name: str,
        *,
        qos_profile: QoSProfile = ...,
        callback_group: CallbackGroup | None = ...,
    ) -> Client: ...
    def create_service(
        self,
        srv_type: type[Any],
        srv_name: str,
        callback: Callable[[Any, Any], Any],
        *,
        qos_profile: QoSProfile = ...,
        callback_group: CallbackGroup | None = ...,
    ) -> Service: ...
    def destroy_client(self, client: Client) -> bool: ...
    def destroy_service(self, service: Service) -> bool: ...
    def count_services(self, service_name: str) -> int: ...
    def get_service_names_and_types(self) -> list[tuple[str, list[str]]]: ...

    # time
    def create_timer(
        self,
        timer_period_sec: float,
        callback: Callable[[], Any],
        callback_group: CallbackGroup | None = ...,
        clock: Clock | None = ...,
        autostart: bool = ...,
    ) -> Timer: ...
    def destroy_timer(self, timer: Timer) -> bool: ...
    def get_node_names_and_namespaces(self) -> list[tuple[str, str]]: ...
