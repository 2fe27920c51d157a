"""
Is Fast DDS set up for camera-sized messages, and if not, what will be lost?

`use_profile` names the profile that ships in config/ before the middleware starts; `complaint`
looks at what the middleware really did, in the memory map of this process. Main thread, at start.
"""

from __future__ import annotations

from collections.abc import Collection
import contextlib
import os
from pathlib import Path
import re

from ament_index_python.packages import get_package_share_directory, PackageNotFoundError

# Fast DDS 3, from Kilted on, has other names for the variable and for what stands in the profile,
# and takes nothing of a profile in which one name is the older one
PROFILES = {
    'FASTRTPS_DEFAULT_PROFILES_FILE': 'fastdds.xml',
    'FASTDDS_DEFAULT_PROFILES_FILE': 'fastdds_3.xml',
}
PROFILE_VARIABLES = tuple(PROFILES)
FASTDDS_2_DISTRIBUTIONS = ('humble', 'iron', 'jazzy')
SEGMENT_BYTES = 8 << 20
SEGMENT = re.compile(
    r'^([0-9a-f]+)-([0-9a-f]+) .*(/dev/shm/fast(?:rtps|dds)_[0-9a-f]+)(?: \(deleted\))?$', re.M
)
# a participant holds this file open, and locked, as long as its segment lives
LOCK_FILE_SUFFIX = '_el'
LOST_IMAGES_TEXT = (
    'images of 500 KB and more will be lost or late. Unset FASTRTPS_DEFAULT_PROFILES_FILE and '
    'FASTDDS_DEFAULT_PROFILES_FILE to use the profile of this package, or give yours a '
    'shared-memory transport with a segment_size of 8388608'
)


def shipped_profile() -> Path | None:
    """Return the profile of this package, or None where the package is not installed."""
    try:
        share = get_package_share_directory('lerobot_serve')
    except PackageNotFoundError:
        return None
    return Path(share) / 'config' / PROFILES[profile_variable()]


def profile_variable() -> str:
    """Return the variable in which this distribution's Fast DDS looks for a profile."""
    return PROFILE_VARIABLES[
        0 if os.environ.get('ROS_DISTRO', 'jazzy') in FASTDDS_2_DISTRIBUTIONS else 1
    ]


def apply_shipped_profile() -> None:
    """Name the shipped profile to Fast DDS, unless the user has named one. Before rclpy starts."""
    profile = shipped_profile()
    if profile and not any(os.environ.get(name) for name in PROFILE_VARIABLES):
        os.environ[profile_variable()] = str(profile)


def segment_bytes(memory_map: str, open_files: Collection[str]) -> int:
    """
    Return the size of this process's own largest shared-memory segment of Fast DDS, 0 without one.

    `memory_map` is its /proc/PID/maps, where also the segments of others are that it reads from.
    """
    sizes = [
        int(end, 16) - int(begin, 16)
        for begin, end, path in SEGMENT.findall(memory_map)
        if path + LOCK_FILE_SUFFIX in open_files
    ]
    # with ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST a second, small one is made and not used
    return max(sizes, default=0)


def shared_memory_warning(middleware: str, memory_map: str, open_files: Collection[str]) -> str:
    """
    Return what is wrong and what it will cost, or nothing. `middleware` is the RMW in use, the
    rest as in `segment_bytes`.
    """
    if 'fastrtps' not in middleware:
        return (
            f'{middleware} is in use; this package is tuned for rmw_fastrtps_cpp, so check '
            'yourself that images arrive (ros2 topic hz)'
        )
    size = segment_bytes(memory_map, open_files)
    if size < SEGMENT_BYTES:
        return (
            f'the shared-memory segment of Fast DDS has {size >> 10} KiB, '
            f'{SEGMENT_BYTES >> 10} are needed: {LOST_IMAGES_TEXT}'
        )
    return ''


def list_open_files() -> set[str]:
    """Return the paths of the files that this process has open; none where the system hides it."""
    paths = set()
    for link in Path('/proc/self/fd').glob('*'):
        # a file may be closed meanwhile, by any thread
        with contextlib.suppress(OSError):
            paths.add(os.readlink(link).removesuffix(' (deleted)'))
    return paths


def read_memory_map() -> str:
    """Return the memory map of this process; empty where the system has none."""
    try:
        return Path('/proc/self/maps').read_text()
    except OSError:
        return ''


def own_shared_memory_warning(middleware: str) -> str:
    """Return the complaint about this process."""
    return shared_memory_warning(middleware, read_memory_map(), list_open_files())
