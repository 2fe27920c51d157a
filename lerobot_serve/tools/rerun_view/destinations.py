# SPDX-License-Identifier: Apache-2.0
"""
Opens where a view goes: a file, a viewer that runs, or a viewer of this machine. The main thread.

Imports the package rerun, which takes seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
import contextlib
import os
from pathlib import Path
import re
import shutil
import socket
import time

import rerun as rr

from lerobot_serve.errors import UserError
from lerobot_serve.tools.rerun_view.rerun_sink import APPLICATION, RerunSink

SUFFIX = '.rrd'
URL = re.compile(r'rerun(?:\+https?)?://(\[[0-9A-Fa-f:.]+\]|[^/:\s\[\]]+):(\d{1,5})/proxy')
DEFAULT_URL = 'rerun+http://127.0.0.1:9876/proxy'
CONNECT_S, CHECK_S = 3.0, 1.0
PROGRAM = 'rerun'
DISPLAYS = ('DISPLAY', 'WAYLAND_DISPLAY')
ALTERNATIVES = (
    'write a file with --save FILE.rrd, or start `rerun` on a machine with a display and give '
    'its address with --viewer rerun+http://HOST:9876/proxy'
)


def open_sink(
    name: str, *, save: Path | None, viewer: str, window_s: float, is_live: bool
) -> RerunSink:
    """
    Open the file `save`, else the viewer at the URL `viewer`, else a viewer of this machine.
    `name` is the title of the recording. Raises UserError.
    """
    # an error of ours in a call of rerun must not be a mere warning
    rr.set_strict_mode(True)
    recording = rr.RecordingStream(APPLICATION)
    recording.set_log_tick_enabled(False)
    recording.set_log_time_enabled(False)
    check: Callable[[bool], None] = nothing_to_check
    if save:
        # the footer lists each part of a file, and needs memory for it until the end
        open_file(recording, save, has_footer=not is_live)
        destination = str(save)
    else:
        destination = viewer or local_viewer(recording, os.environ)
        connect(recording, destination)
        check = ViewerCheck(destination)
    recording.send_recording_name(name)
    return RerunSink(recording, destination, check=check, window_s=window_s)


def open_file(recording: rr.RecordingStream, path: Path, *, has_footer: bool) -> None:
    """Create a file. Raises UserError."""
    if path.suffix != SUFFIX:
        raise UserError(f'--save {path}: the name must end with {SUFFIX}, or no viewer opens it')
    try:
        # rerun would replace it
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
        recording.save(path, write_footer=has_footer)
    except FileExistsError:
        raise UserError(f'{path} exists already; name a new file') from None
    except OSError as error:
        raise UserError(f'{path} cannot be created: {error.strerror or error}') from None
    except RuntimeError as error:
        path.unlink(missing_ok=True)
        raise UserError(f'{path} cannot be written: {error}') from None


def connect(recording: rr.RecordingStream, url: str) -> None:
    """Connect to a viewer. Raises UserError."""
    host, port = viewer_address(url)
    try:
        probe(host, port)
    except OSError as error:
        raise UserError(
            f'no viewer answers at {url} ({error.strerror or error}); start one there: '
            f'rerun --port {port}'
        ) from None
    recording.connect_grpc(url)


class ViewerCheck:
    """Looks whether a viewer is still there, at most every CHECK_S. One thread."""

    def __init__(self, url: str) -> None:
        self._address = viewer_address(url)
        self._next_s = time.monotonic() + CHECK_S

    def __call__(self, is_due: bool) -> None:
        """Look now if `is_due`. Raises OSError if it is gone."""
        if not is_due and time.monotonic() < self._next_s:
            return
        try:
            probe(*self._address)
        except OSError as error:
            raise OSError(f'the viewer is gone: {error.strerror or error}') from None
        self._next_s = time.monotonic() + CHECK_S


def nothing_to_check(is_due: bool) -> None:
    """Check nothing: a file reports its errors itself."""


def probe(host: str, port: int) -> None:
    """Connect and disconnect. Raises OSError."""
    socket.create_connection((host, port), CONNECT_S).close()


def viewer_address(url: str) -> tuple[str, int]:
    """Return host and port of a viewer. Raises UserError."""
    match = URL.fullmatch(url)
    if not match or not 0 < int(match[2]) < 65536:
        raise UserError(
            f'--viewer {url!r} is not an address of a viewer; give one such as {DEFAULT_URL}'
        )
    return match[1].strip('[]'), int(match[2])


def local_viewer(recording: rr.RecordingStream, environment: Mapping[str, str]) -> str:
    """Start a viewer, or find the one that runs; return its URL. Raises UserError."""
    host, port = viewer_address(DEFAULT_URL)
    with contextlib.suppress(OSError):
        probe(host, port)
        return DEFAULT_URL
    program = shutil.which(PROGRAM)
    if not program:
        raise UserError(f'the program `{PROGRAM}` is not on the PATH; {ALTERNATIVES}')
    if not any(environment.get(name) for name in DISPLAYS):
        raise UserError(f'this machine has no display; {ALTERNATIVES}')
    try:
        rr.spawn(connect=False, executable_path=program, recording=recording)
    except RuntimeError as error:
        raise UserError(f'the viewer does not start ({error}); {ALTERNATIVES}') from None
    return DEFAULT_URL
