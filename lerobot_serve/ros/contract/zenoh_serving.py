# SPDX-License-Identifier: Apache-2.0
"""
What a policy server or router offers over Zenoh beside its ROS 2 services and topics.

Built by the thread that builds the node; threads as in zenoh.server_endpoint.
"""

from __future__ import annotations

from collections.abc import Callable

from lerobot_serve.contract.data_path.chunk import Chunk
from lerobot_serve.ros.contract import service_bytes
from lerobot_serve.ros.process.node_runtime import NodeRuntime
from lerobot_serve.zenoh.keys import ServerKeys
from lerobot_serve.zenoh.link import ZenohLink
from lerobot_serve.zenoh.predictions import SubmitPrediction
from lerobot_serve.zenoh.replies import ZenohReplyPublishers
from lerobot_serve.zenoh.server_endpoint import Handler, ServerEndpoint
from lerobot_serve.zenoh.server_name import ServerName
from lerobot_serve.zenoh.settings import ZenohSettings
from lerobot_serve_interfaces.msg import ServerStatus


class ZenohServing:
    """The link, the replies, and after `serve` the endpoint of one node."""

    def __init__(self, settings: ZenohSettings, server: str) -> None:
        """Raises UserError."""
        self._server, self.link = server, ZenohLink(settings)
        keys = ServerKeys(settings.site, server)
        self._name = ServerName(self.link, keys)
        self.replies = ZenohReplyPublishers(self.link, keys)
        self._endpoint: ServerEndpoint | None = None

    def serve(
        self,
        runtime: NodeRuntime,
        handlers: dict[str, Handler],
        *,
        on_observation: Callable[[bytes], None],
        on_drop: Callable[[str], None],
        log_warning: Callable[[str], None],
    ) -> None:
        """
        Offer those services of `handlers` that robots and routers call. Raises UserError when
        another server has this name.
        """
        self._name.claim(log_warning)
        self.replies.on_drop = on_drop
        self._endpoint = ServerEndpoint(
            self.link,
            self._server,
            {name: each for name, each in handlers.items() if name in service_bytes.SERVICES},
            service_bytes,
            run=runtime.executor.create_task,
            on_observation=on_observation,
            on_drop=on_drop,
            log_warning=log_warning,
        )

    def serve_predictions(self, submit: SubmitPrediction, withdraw: Callable[[str], bool]) -> None:
        """
        Offer PredictChunk to routers; `submit` queues a request, `withdraw` removes one that
        waits. After `serve`.
        """
        assert self._endpoint
        self._endpoint.serve_predictions(submit, withdraw)

    def publish_status(self, status: ServerStatus) -> None:
        if self._endpoint:
            self._endpoint.publish_status(service_bytes.encode(status))

    def publish_no_session(self, chunk: Chunk, raw: bytes) -> None:
        if self._endpoint:
            self._endpoint.publish_no_session(chunk.client_id, raw)

    @property
    def conflict(self) -> str:
        """That another server has this name, with the remedy; empty otherwise. Any thread."""
        return self._name.conflict

    def close(self) -> None:
        """Say goodbye and close the link."""
        if self._endpoint:
            self._endpoint.close()
        self._name.close()
        self.replies.close()
        self.link.close()
