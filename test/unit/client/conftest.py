# SPDX-License-Identifier: Apache-2.0
"""A test that is a coroutine runs in an event loop; an exception in a callback of it fails it."""

from __future__ import annotations

import asyncio
import inspect

import pytest

LIMIT_S = 20.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test, names = pyfuncitem.obj, pyfuncitem._fixtureinfo.argnames
    if not inspect.iscoroutinefunction(test):
        return None
    faults: list[object] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, what: faults.append(what))
        fixtures = {name: pyfuncitem.funcargs[name] for name in names}
        await asyncio.wait_for(test(**fixtures), LIMIT_S)

    asyncio.run(watched())
    assert not faults
    return True
