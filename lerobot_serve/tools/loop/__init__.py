# SPDX-License-Identifier: Apache-2.0
"""
The conductor of the learning loop: takes each new version from the store to the robots, or not.

It looks at what is there (store, gate records, rollout), `decisions` chooses the one next step,
and a verb of `lerobot-serve` does it. It keeps no state but the versions that were rolled back, in
the journal; everything else is read again. Main thread; a client of the fleet is handed in.
"""
