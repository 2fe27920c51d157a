# SPDX-License-Identifier: Apache-2.0
"""Reading requirements.txt: one pip file that serves several distributions."""

from __future__ import annotations

import re


def read(text: str, distro: str) -> dict[str, list[str]]:
    """Return the pins of each section, for one distribution."""
    sections: dict[str, list[str]] = {}
    pins: list[str] = []
    for line in text.splitlines():
        header = re.match(r'# \[(\w+)\]', line)
        more = re.match(rf'# {distro} also: (\S+)$', line)
        if header:
            pins = sections.setdefault(header[1], [])
        elif more:
            pins.append(more[1])
        elif line and not line.startswith('#'):
            pin, _, comment = line.partition('#')
            other = re.search(rf'{distro}: (\S+)', comment)
            pins.append(re.sub(r'==.*', f'=={other[1]}', pin.strip()) if other else pin.strip())
    return sections
