# SPDX-License-Identifier: Apache-2.0
"""
The servers of a robot: which one is current, whether its writer is alive, and whether it still
replies. Called by `Requester` in the thread `request`; the thread `replies` reports liveliness and
the executor the response to a probe. Plain.
"""
