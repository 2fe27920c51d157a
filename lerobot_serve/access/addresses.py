# SPDX-License-Identifier: Apache-2.0
"""The address that a server listens on. Pure."""

from __future__ import annotations

import ipaddress


def is_loopback_address(address: str) -> bool:
    """Return whether only this machine reaches an address; a name must be localhost."""
    if address.lower() == 'localhost':
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
