# SPDX-License-Identifier: Apache-2.0
"""
Identity and texts for `lerobot-serve versions`: `identity` computes the fingerprint of a
folder as a policy server does, without torch; `texts` makes tables, results and JSON. Called by
the verb in its main thread.
"""
