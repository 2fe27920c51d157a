# SPDX-License-Identifier: Apache-2.0
"""
Versions of policies: folders named by their fingerprint, each with a manifest, in a store.

`lerobot-serve versions` publishes, fetches, serves, compares and deletes them; a policy server
checks a version before it loads it and holds a shared lock while it serves it; `policies` reads
names from manifests. Plain modules without ROS and torch; safe in any thread and in several
processes, because each change of a store happens under a lock of its folder.
"""
