# SPDX-License-Identifier: Apache-2.0
"""
One link within a site: a program that passes on the connections of a TCP port.

    python -m benchmarks.site.forwarder PORT TARGET

TARGET is a port of this network, or the path of a socket. It prints one line once it listens.
SIGSTOP cuts the link: what is on its way waits and neither end is informed. SIGINT ends it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
import contextlib
import sys

BLOCK_BYTES = 1 << 16


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass on one direction until an end is closed, then close the other."""
    with contextlib.suppress(OSError):
        while block := await reader.read(BLOCK_BYTES):
            writer.write(block)
            await writer.drain()
    writer.close()


async def connect(target: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if target.startswith('/'):
        return await asyncio.open_unix_connection(target)
    return await asyncio.open_connection('127.0.0.1', int(target))


async def serve(port: int, target: str) -> None:
    async def on_connection(near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            far, there = await connect(target)
        except OSError:
            back.close()
            return
        await asyncio.gather(pass_on(near, there), pass_on(far, back))

    server = await asyncio.start_server(on_connection, '127.0.0.1', port)
    print('listens', flush=True)
    await server.serve_forever()


def main(arguments: Sequence[str]) -> int:
    """Serve until SIGINT."""
    port, target = arguments
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(int(port), target))
    return 0


if __name__ == '__main__':
    raise SystemExit(main(sys.argv[1:]))
