# SPDX-License-Identifier: Apache-2.0
"""Fixtures of unit tests of more than one area."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
import inspect

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine in an event loop of its own."""
    test, names = pyfuncitem.obj, pyfuncitem._fixtureinfo.argnames
    if not inspect.iscoroutinefunction(test):
        return None
    from support.gateway.gateway_rig import in_loop

    in_loop(lambda: test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(scope='session')
def grpc_thread():
    """Keep the one thread of grpc.aio until the tests end: it is none of a test's own."""
    from grpc._cython import cygrpc

    # it asks for the loop of this thread, which asyncio.run of an earlier test has taken away
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    cygrpc.init_grpc_aio()
    yield
    cygrpc.shutdown_grpc_aio()
    loop.close()


@pytest.fixture
def make_router(tmp_path):
    """Make routers with one state; a test closes one before the next."""
    from support.router.router_core_rig import RoutingRig

    with ExitStack() as made:

        def make(**parameters: object) -> RoutingRig:
            rig = RoutingRig(tmp_path / 'state', **parameters)
            made.callback(rig.close)
            return rig

        yield make
