# SPDX-License-Identifier: Apache-2.0
"""
Configure Fast DDS for camera-sized messages and warn when the configuration has no effect.

`apply_shipped_profile` sets the profile in config/ before the middleware starts;
`own_shared_memory_warning` checks the effective segment size in the memory map of this process.
Main thread, at start.
"""

from __future__ import annotations

from collections.abc import Collection
import os
from pathlib import Path

from ament_index_python.packages import get_package_share_directory, PackageNotFoundError

from lerobot_serve.shared_memory.segments import (
    list_open_files,
    own_segments,
    read_memory_map,
)

# Fast DDS 3, from Kilted on, renamed the variable and profile elements, and ignores a profile that
# uses one of the older names
PROFILES = {
    'FASTRTPS_DEFAULT_PROFILES_FILE': 'fastdds.xml',
    'FASTDDS_DEFAULT_PROFILES_FILE': 'fastdds_3.xml',
}
PROFILE_VARIABLES = tuple(PROFILES)
FASTDDS_2_DISTRIBUTIONS = ('humble', 'iron', 'jazzy')
SEGMENT_BYTES = 8 << 20
LOST_IMAGES_TEXT = (
    'images of 500 KB and more may be lost or delayed. Unset FASTRTPS_DEFAULT_PROFILES_FILE and '
    'FASTDDS_DEFAULT_PROFILES_FILE to use the profile of this package, or set segment_size to '
    '8388608 in the shared-memory transport of your profile'
)


def shipped_profile() -> Path | None:
    """Return the profile of this package, or None where the package is not installed."""
    try:
        share = get_package_share_directory('lerobot_serve')
    except PackageNotFoundError:
        return None
    return Path(share) / 'config' / PROFILES[profile_variable()]


def profile_variable() -> str:
    """Return the environment variable of the profile for this distribution's Fast DDS."""
    return PROFILE_VARIABLES[
        0 if os.environ.get('ROS_DISTRO', 'jazzy') in FASTDDS_2_DISTRIBUTIONS else 1
    ]


def apply_shipped_profile() -> None:
    """Set the shipped profile unless the user has set one. Before rclpy starts."""
    profile = shipped_profile()
    if profile and not any(os.environ.get(name) for name in PROFILE_VARIABLES):
        os.environ[profile_variable()] = str(profile)


def segment_bytes(memory_map: str, open_files: Collection[str]) -> int:
    """
    Return the size of this process's own largest shared-memory segment of Fast DDS, 0 without one.
    `open_files` are the open files of the process; the rest as in `own_segments`.
    """
    # ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST creates a second, small and unused segment
    return max(own_segments(memory_map, open_files).values(), default=0)


def shared_memory_warning(middleware: str, memory_map: str, open_files: Collection[str]) -> str:
    """
    Return a warning with its consequence and remedy, empty for none. `middleware` is the
    RMW in use, the rest as in `segment_bytes`.
    """
    if 'fastrtps' not in middleware:
        return (
            f'{middleware} is in use; this package is tuned for rmw_fastrtps_cpp. Check that '
            'images arrive (ros2 topic hz)'
        )
    size = segment_bytes(memory_map, open_files)
    if size < SEGMENT_BYTES:
        return (
            f'the shared-memory segment of Fast DDS has {size >> 10} KiB, '
            f'{SEGMENT_BYTES >> 10} KiB are needed: {LOST_IMAGES_TEXT}'
        )
    return ''


def own_shared_memory_warning(middleware: str) -> str:
    """Return the warning about this process."""
    return shared_memory_warning(middleware, read_memory_map(), list_open_files())
