# SPDX-License-Identifier: Apache-2.0
"""
Compute the memory of the files of a policy from their headers (weights, states of processor steps,
programs, tokenizers, language models: all that a loader reads), check free memory before they are
read, and release unused memory. Torch is imported lazily.

Reservations of other processes are in `memory_reservation`. Thread: the one that loads a policy;
`declared_bytes` any thread.
"""

from __future__ import annotations

from dataclasses import dataclass
import gc
from pathlib import Path
import sys
from typing import Any

from lerobot_serve.policies.base import LoadOptions, PolicyError
from lerobot_serve.policies.files.assets import find_assets
from lerobot_serve.policies.files.file_headers import read_json, tensor_bytes, unpacked_bytes

CONFIG_FILE = 'config.json'
DESCRIPTION_FILES = (CONFIG_FILE, 'policy.json')
STEP_FILES = ('policy_preprocessor.json', 'policy_postprocessor.json')
# files that the policy kinds of this package read, beside the state files of steps
POLICY_FILES = {
    CONFIG_FILE,
    *STEP_FILES,
    'policy.json',
    'model.safetensors',
    'statistics.safetensors',
}
PROGRAM_SUFFIXES = {'.pt2', '.onnx', '.data'}
# how to read the declared size by suffix; any other file counts with its size
SIZE_READERS = {'.safetensors': tensor_bytes, '.pt2': unpacked_bytes}


def declared_bytes(folder: Path) -> int:
    """
    Return the bytes that the files of a policy folder and their assets declare.

    The result is 0 for a path that is not a folder, as of a policy without files. Raises
    PolicyError for an unreadable header and for an asset that is not on this machine.

    In a folder of another package's policy kind, which has no known description, every file
    counts.
    """
    if not folder.is_dir():
        return 0
    if not any((folder / name).is_file() for name in DESCRIPTION_FILES):
        return sum(file_bytes(path) for path in folder.iterdir() if path.is_file())
    config = _object(folder / CONFIG_FILE)
    steps = [step for name in STEP_FILES for step in _steps(folder / name)]
    names = POLICY_FILES | {
        name for step in steps if isinstance(name := step.get('state_file'), str)
    }
    files = [
        path
        for path in folder.iterdir()
        if path.is_file() and (path.name in names or path.suffix in PROGRAM_SUFFIXES)
    ]
    configs = [value for step in steps if isinstance(value := step.get('config'), dict)]
    for asset in find_assets(config, configs):
        files += asset.files
    return sum(map(file_bytes, files))


def file_bytes(file: Path) -> int:
    """Return the bytes that one file declares. Raises PolicyError."""
    declared = SIZE_READERS.get(file.suffix)
    return declared(file) if declared else file.stat().st_size


def _object(file: Path) -> dict[str, Any]:
    value = read_json(file) if file.is_file() else {}
    return value if isinstance(value, dict) else {}


def _steps(file: Path) -> list[dict[str, Any]]:
    steps = _object(file).get('steps')
    return [step for step in steps if isinstance(step, dict)] if isinstance(steps, list) else []


MEMORY_INFO, OWN_CGROUPS = Path('/proc/meminfo'), Path('/proc/self/cgroup')
CGROUPS = Path('/sys/fs/cgroup')
_LEFT_OUT: set[str] = set()
KIB, MB = 1 << 10, 1 << 20


@dataclass(frozen=True, slots=True)
class MemoryCapacity:
    """The free and total memory of a host, cgroup or device."""

    location: str
    free_bytes: int
    total_bytes: int


class NotEnoughMemory(PolicyError):
    """A policy does not fit beside what is loaded already."""


def check_memory(options: LoadOptions, weight_bytes: int, host_copies: int = 1) -> None:
    """
    Raise NotEnoughMemory unless weights of this size fit on the host and the device.

    `host_copies` is the number of copies of the weights in host memory while they are read. Pages
    of a mapped file do not count, since the system drops them under pressure: with a safetensors
    file of 1 GB the process grows by 2 GB, of which 1 GB is the file.
    """
    kept_bytes = weight_bytes + options.memory_margin_bytes + options.embedding_cache_bytes
    read_bytes = weight_bytes * host_copies
    if options.device.startswith('cuda'):
        require_free(kept_bytes, cuda_memory(options.device), options)
        require_free(read_bytes, host_memory(), options)
    else:
        require_free(max(kept_bytes, read_bytes), host_memory(), options)


def require_free(needed_bytes: int, room: MemoryCapacity, options: LoadOptions) -> None:
    """Raise NotEnoughMemory unless this memory is free."""
    if needed_bytes <= room.free_bytes:
        return
    raise NotEnoughMemory(
        f'the policy in {options.path!r} needs {needed_bytes / MB:.0f} MB of {room.location}, of '
        f'which {room.free_bytes / MB:.0f} of {room.total_bytes / MB:.0f} MB are free; use a '
        'smaller policy or another device, stop other programs that use it, or lower '
        f'memory_margin_mb (now {options.memory_margin_bytes / MB:.0f}) if this policy needs less '
        'beside its weights'
    )


def cuda_memory(device: str) -> MemoryCapacity:
    """Return the memory of a device that torch can use."""
    import torch  # lazy, so that a policy without torch does not load it

    return MemoryCapacity(
        f'the memory of {device}', *torch.cuda.mem_get_info(torch.device(device))
    )


def cuda_device_key(device: str) -> str:
    """
    Return a key of a device that is equal in all processes, independent of its number.

    Raises PolicyError for one that cannot be used here.
    """
    import torch

    from lerobot_serve.policies.runtime.device import torch_device

    properties = torch.cuda.get_device_properties(torch_device(device))
    return f'cuda-{getattr(properties, "uuid", properties.name)}'


def host_memory() -> MemoryCapacity:
    """Return the memory available to this process: that of the machine, or of its cgroup."""
    machine = machine_memory(MEMORY_INFO.read_text())
    try:
        rooms = [machine, *cgroup_memory(OWN_CGROUPS.read_text(), CGROUPS)]
    except OSError:
        return machine  # a system without cgroups
    return min(rooms, key=lambda room: room.free_bytes)


def machine_memory(text: str) -> MemoryCapacity:
    """Return the memory in /proc/meminfo."""
    lines = (line.split() for line in text.splitlines())
    sizes = {words[0]: int(words[1]) * KIB for words in lines if len(words) > 1}
    return MemoryCapacity("this machine's memory", sizes['MemAvailable:'], sizes['MemTotal:'])


def cgroup_memory(text: str, root: Path) -> list[MemoryCapacity]:
    """
    Return the memory that the cgroups of a process and their parents allow; empty without a limit.
    `text` has the format of /proc/self/cgroup.
    """
    rooms = []
    for line in text.splitlines():
        controllers, _, path = line.partition(':')[2].partition(':')
        if controllers == '':
            base, files = root, VERSION_2
        elif 'memory' in controllers.split(','):
            base, files = root / 'memory', VERSION_1
        else:
            continue
        # in a container the path may be that of the host, where only the base is visible
        group = base / path.lstrip('/')
        groups = [group, *group.parents]
        for folder in groups[: groups.index(base) + 1]:
            if room := _cgroup_limit(folder, files):
                rooms.append(room)
    return rooms


@dataclass(frozen=True, slots=True)
class CgroupFiles:
    """The file names of a cgroup version."""

    limit: str
    usage: str
    reclaimable: str


VERSION_1 = CgroupFiles('memory.limit_in_bytes', 'memory.usage_in_bytes', 'total_inactive_file')
VERSION_2 = CgroupFiles('memory.max', 'memory.current', 'inactive_file')
NO_LIMIT_BYTES = 1 << 60


def _cgroup_limit(folder: Path, files: CgroupFiles) -> MemoryCapacity | None:
    try:
        limit = (folder / files.limit).read_text().strip()
        used_bytes = int((folder / files.usage).read_text())
        statistics = dict(map(str.split, (folder / 'memory.stat').read_text().splitlines()))
    except OSError:
        return None
    if limit == 'max' or int(limit) >= NO_LIMIT_BYTES:
        return None
    # the kernel reclaims inactive file pages for new memory
    used_bytes -= int(statistics.get(files.reclaimable, 0))
    free_bytes = max(0, int(limit) - used_bytes)
    return MemoryCapacity("this process's control group", free_bytes, int(limit))


def leave_out_of_collections(libraries: str) -> None:
    """
    Leave all objects of now, those of libraries that were just imported, out of later garbage
    collections; once in a process for each name.

    With LeRobot imported a collection takes 0.3 s, in which no thread of a server runs. What is
    frozen is still freed with its last reference; only cycles among it stay.
    """
    if libraries not in _LEFT_OUT:
        _LEFT_OUT.add(libraries)
        gc.freeze()


def release_unused() -> None:
    """Release unreferenced memory, on the host and on the device."""
    gc.collect()
    torch = sys.modules.get('torch')
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
