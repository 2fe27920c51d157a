# SPDX-License-Identifier: Apache-2.0
"""A test that is a coroutine runs in an event loop of its own, with a limit of time."""

from __future__ import annotations

import inspect

import pytest
from support.gateway.gateway_rig import in_loop


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test, names = pyfuncitem.obj, pyfuncitem._fixtureinfo.argnames
    if not inspect.iscoroutinefunction(test):
        return None
    in_loop(lambda: test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
