# SPDX-License-Identifier: Apache-2.0
"""A node publishes copies of its local path unless keys encrypt its links."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from lerobot_serve.ros.contract.server_links import serve_on_host


@pytest.mark.parametrize(
    ('local_path', 'zenoh_keys', 'has_copies'),
    [(True, '', True), (True, '/keys', False), (False, '', False), (False, '/keys', False)],
)
def test_copies_need_a_local_path_and_no_keys(node, local_path, zenoh_keys, has_copies):
    parameters = SimpleNamespace(
        local_path=local_path, zenoh_keys=zenoh_keys, local_group='', local_folder=''
    )
    endpoint, copies = serve_on_host(node, parameters, lambda _: None, lambda _: None)
    try:
        assert (endpoint is not None) is local_path
        assert (copies is not None) is has_copies
        topics = [publisher.topic_name for publisher in node.publishers]
        assert any('/local/' in topic for topic in topics) is has_copies
    finally:
        if endpoint:
            endpoint.close()
