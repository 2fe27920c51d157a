# SPDX-License-Identifier: Apache-2.0
"""
Start every process of this package, so that none runs code of the folder it is started in.

Python puts the working folder first where it looks for modules, for `-m` and `-c` and for each
empty or relative entry of PYTHONPATH; the dynamic linker does so for LD_LIBRARY_PATH. A child
starts with `-P` and with absolute entries only. PYTHONPATH itself stays: a ROS workspace is found
by it, so `-I` would lose rclpy. A child that reads files from elsewhere (`run_reader`) also gets a
working folder of its own, which is empty, only the environment in READER_VARIABLES, and limits.
No other module uses `subprocess` or `os.exec*`; `test_child_process.py` reads the source. Any
thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
import contextlib
from dataclasses import dataclass
import os
import re
import resource
import subprocess
import sys
import tempfile
from typing import Any, NoReturn

DEVNULL, PIPE, STDOUT = subprocess.DEVNULL, subprocess.PIPE, subprocess.STDOUT
Process = subprocess.Popen
TimeoutExpired = subprocess.TimeoutExpired
PATH_VARIABLES = ('PATH', 'PYTHONPATH', 'LD_LIBRARY_PATH', 'LD_PRELOAD')
# where libraries are and keep caches, how many threads they start, and which devices they use
READER_VARIABLES = re.compile(
    r'PATH|PYTHONPATH|PYTHONHOME|PYTHONNOUSERSITE|PYTHONUSERBASE|PYTHONDONTWRITEBYTECODE'
    r'|LD_LIBRARY_PATH|LD_PRELOAD|VIRTUAL_ENV|HOME|USER|LOGNAME|TMPDIR|TZ|LANG|LC_\w+'
    r'|AMENT_PREFIX_PATH|CUDA_\w+|NVIDIA_\w+|ROCR_\w+|HIP_\w+|OMP_\w+|MKL_\w+|OPENBLAS_\w+'
    r'|HF_HOME|HF_HUB_CACHE|HF_HUB_OFFLINE|HF_DATASETS_OFFLINE|HF_LEROBOT_HOME|HF_DATASETS_CACHE'
    r'|HUGGINGFACE_HUB_CACHE|TRANSFORMERS_OFFLINE|XDG_CACHE_HOME|TORCH_HOME|COVERAGE_\w+'
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a child that reads files from elsewhere; `wall_s` is that of waiting."""

    wall_s: float
    memory_bytes: int = resource.RLIM_INFINITY
    cpu_s: int = resource.RLIM_INFINITY
    open_files: int = 256


def python(*words: str) -> list[str]:
    """Return the command of the Python that runs now: `-m`, a module and its arguments."""
    return [sys.executable, '-P', *words]


def safe_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return an environment, by default this process's, without paths below the working folder."""
    found = dict(os.environ if environment is None else environment)
    for name in PATH_VARIABLES:
        if name in found:
            kept = [entry for entry in found[name].split(os.pathsep) if os.path.isabs(entry)]
            found[name] = os.pathsep.join(kept)
            # an empty variable is one empty entry
            if not kept:
                del found[name]
    return found


def reader_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a child needs that reads files from elsewhere: no tokens, no addresses."""
    found = safe_environment(environment)
    return {name: value for name, value in found.items() if READER_VARIABLES.fullmatch(name)}


def start(
    command: Sequence[str], *, env: Mapping[str, str] | None = None, **options: Any
) -> Process[Any]:
    """Start a command; `options` are those of Popen. Raises OSError."""
    return subprocess.Popen(command, env=safe_environment(env), **options)


def replace_process(
    path: str, command: Sequence[str], environment: Mapping[str, str] | None = None
) -> NoReturn:
    """Replace this process by a program. Main thread. Raises OSError."""
    os.execve(path, [*command], safe_environment(environment))


def replace_by_same_command() -> NoReturn:
    """Replace this process by a new one with the same command line. Raises OSError."""
    replace_process(sys.executable, python(*sys.orig_argv[1:]))


@contextlib.contextmanager
def empty_folder() -> Iterator[str]:
    """Yield an empty folder, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix='lerobot_serve_') as folder:
        yield folder


def run_reader(
    words: Sequence[str],
    limits: Limits,
    *,
    data: bytes = b'',
    environment: Mapping[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """
    Run Python with the words and the input until it ends, or kill it at the limit.

    The input is what comes from elsewhere: the limits are set before it is written. `environment`
    replaces that of `reader_environment`. Raises TimeoutExpired, OSError.
    """
    with empty_folder() as folder:
        child = start(
            python(*words),
            env=reader_environment() if environment is None else environment,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            cwd=folder,
        )
        with child:
            try:
                _set_limits(child.pid, limits)
                output, errors = child.communicate(data, timeout=limits.wall_s)
            except BaseException:
                child.kill()
                raise
    return subprocess.CompletedProcess(child.args, child.returncode, output, errors)


def _set_limits(process: int, limits: Limits) -> None:
    for number, limit in (
        (resource.RLIMIT_DATA, limits.memory_bytes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_CORE, 0),
    ):
        _, most = resource.prlimit(process, number)
        if most != resource.RLIM_INFINITY and (limit == resource.RLIM_INFINITY or limit > most):
            limit = most
        # a child that has ended already is found by its status
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(process, number, (limit, limit))
