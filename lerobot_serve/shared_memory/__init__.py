# SPDX-License-Identifier: Apache-2.0
"""
The shared memory of Fast DDS in /dev/shm, and what a killed process does to it.

`segments` removes the segments of a killed process; `ports` finds queues that it blocked, and
`dead_ports` those to which others would send for good. `own_ports` waits until a process may close
its own.
Linux only: elsewhere there is nothing to find. Any thread.
"""
