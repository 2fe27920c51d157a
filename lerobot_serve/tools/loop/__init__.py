# SPDX-License-Identifier: Apache-2.0
"""
The conductor of the learning loop: takes each new version from the store to the robots, or not.

It looks at what is there (store, gate records, rollout), `decisions` chooses the one next step,
and a verb of `lerobot-serve` does it. Nothing is remembered that cannot be seen again, but for
the versions that were rolled back, which the journal has. Main thread; `router_observer` alone
imports ROS.
"""
