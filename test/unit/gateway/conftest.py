# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the gateway's unit tests."""

from __future__ import annotations

import pytest


@pytest.fixture(scope='session')
def grpc_thread():
    """Keep the one thread of grpc.aio until the tests end: it is none of a test's own."""
    from grpc._cython import cygrpc

    cygrpc.init_grpc_aio()
    yield
    cygrpc.shutdown_grpc_aio()
