# SPDX-License-Identifier: Apache-2.0
"""
`python -m MODULE OPTION...` for a module of LeRobot: python -m support.gateway.lerobot_command
MODULE OPTION... runs it as __main__, after torchvision is imported as for a policy. The pinned
torch for the CPU lacks operators of the wheel, which an environment of LeRobot has.
"""

from __future__ import annotations

import runpy
import sys


def main() -> None:
    from lerobot_serve.policies.lerobot import compat

    compat.lerobot()
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)


if __name__ == '__main__':
    main()
