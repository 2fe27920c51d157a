# SPDX-License-Identifier: Apache-2.0
"""
Pages of memory that two processes map: a client writes requests into them, its server reads them
there.

A page is an anonymous file (memfd). It has no name, so that nothing stays behind: the kernel frees
it with the last process that has it. It is sealed against shrinking, since a reader of a shortened
file dies. Its first byte tells whether the server still uses it, so that a page comes back without
a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
import ctypes
import fcntl
import mmap
import os
from typing import Any
import weakref

import numpy as np

# the state of a page, and then its request
HEADER_BYTES = 64
FREE, IN_USE = 0, 1
# pages of one connection, and their bytes
PAGES_LIMIT = 256
PAGES_BYTES_LIMIT = 1 << 30
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL

MAP_FAILED = ctypes.c_void_p(-1).value
Buffer = bytes | memoryview

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_long,
)
_libc.munmap.argtypes = ctypes.c_void_p, ctypes.c_size_t


def map_memory(descriptor: int, size: int) -> memoryview:
    """
    Return the memory of a file, mapped as long as anything refers to it. Raises OSError.

    The module mmap would keep a descriptor for each page: a server of many has too few.
    """
    address = _libc.mmap(
        None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, descriptor, 0
    )
    if address in (None, MAP_FAILED):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    memory = (ctypes.c_ubyte * size).from_address(address)
    end = weakref.finalize(memory, _libc.munmap, address, size)
    # other threads may still read when the interpreter ends
    end.atexit = False
    return memoryview(memory).cast('B')


class WrittenPage:
    """A page of a client. Owned by one thread at a time."""

    def __init__(self, size: int) -> None:
        """Raises OSError without memory."""
        length = -(-(HEADER_BYTES + size) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.descriptor = os.memfd_create('lerobot_serve', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            # without it a host that has run out of memory would end the process at a write
            os.posix_fallocate(self.descriptor, 0, length)
            fcntl.fcntl(self.descriptor, fcntl.F_ADD_SEALS, SEALS)
            self._memory = map_memory(self.descriptor, length)
        except BaseException:
            os.close(self.descriptor)
            raise
        self.capacity = length - HEADER_BYTES

    @property
    def is_free(self) -> bool:
        return self._memory[0] == FREE

    @property
    def is_handed_over(self) -> bool:
        """Whether the server has the page."""
        return self.descriptor < 0

    def write(self, parts: Sequence[Buffer]) -> None:
        """Write a request; the page is in use until its reader frees it."""
        self._memory[0] = IN_USE
        end = HEADER_BYTES
        for part in parts:
            begin, end = end, end + len(part)
            self._memory[begin:end] = part

    def free(self) -> None:
        """Give the page back: the server does not learn of its request."""
        self._memory[0] = FREE

    def hand_over(self) -> None:
        """Close the descriptor: the server has it, and the memory stays mapped."""
        os.close(self.descriptor)
        self.descriptor = -1

    def close(self) -> None:
        if not self.is_handed_over:
            self.hand_over()


class WrittenPages:
    """The pages of one connection of a client. Owned by one thread at a time."""

    def __init__(self, limit: int = PAGES_LIMIT, bytes_limit: int = PAGES_BYTES_LIMIT) -> None:
        self._pages: list[WrittenPage] = []
        self._limit, self._bytes_limit = limit, bytes_limit

    def write(self, parts: Sequence[Buffer], size: int) -> tuple[int, WrittenPage] | None:
        """
        Write a request; return its page with the number. Return None when every page is in use
        and another is one too many. Raises OSError without memory.
        """
        too_small = None
        for number, page in enumerate(self._pages):
            if page.is_free:
                if page.capacity >= size:
                    page.write(parts)
                    return number, page
                too_small = number
        if too_small is None and len(self._pages) == self._limit:
            return None
        if size + sum(page.capacity for page in self._pages) > self._bytes_limit:
            return None
        page = WrittenPage(size)
        page.write(parts)
        if too_small is None:
            self._pages.append(page)
            return len(self._pages) - 1, page
        self._pages[too_small].close()
        self._pages[too_small] = page
        return too_small, page

    def close(self) -> None:
        for page in self._pages:
            page.close()
        self._pages.clear()


class ReadPage:
    """A page of another process, which may be hostile. The thread of the endpoint."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over. Raises ValueError for a file that may shrink."""
        try:
            self.size = os.fstat(descriptor).st_size
            # only a memfd has seals
            if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError('a page must be sealed against shrinking')
            if not HEADER_BYTES < self.size <= PAGES_BYTES_LIMIT:
                raise ValueError(f'a page must have up to {PAGES_BYTES_LIMIT} bytes')
            self._memory = map_memory(descriptor, self.size)
        except OSError as error:
            raise ValueError(f'a page must be a memfd: {error}') from None
        finally:
            os.close(descriptor)
        self._lease: weakref.ref[object] | None = None

    def lease(self, size: int) -> memoryview:
        """
        Return the request in this page, to read in place; the page is free once nothing refers to
        it. Raises ValueError for a page that is in use, and for a size beyond it.
        """
        self._check(size)
        if self._lease and self._lease():
            raise ValueError('the page is in use')
        request: Any = np.frombuffer(self._memory, np.uint8, size, HEADER_BYTES)
        self._lease = weakref.ref(request, self._freed())
        # a view of numpy would refer to the memory alone, and the page seem free
        return memoryview(request).toreadonly()

    def copy(self, size: int) -> bytes:
        """Return a copy of the request, and free the page. Raises ValueError as `lease`."""
        self._check(size)
        request = bytes(self._memory[HEADER_BYTES : HEADER_BYTES + size])
        self._memory[0] = FREE
        return request

    def _check(self, size: int) -> None:
        if not 0 < size <= self.size - HEADER_BYTES:
            raise ValueError(f'{size} bytes do not fit into a page of {self.size}')

    def _freed(self) -> Callable[[object], None]:
        """Return what frees the page, whose connection may have ended before."""
        memory = self._memory

        def freed(_: object) -> None:
            memory[0] = FREE

        return freed

    def free(self) -> None:
        """Give the page back: its request is not read."""
        self._memory[0] = FREE
