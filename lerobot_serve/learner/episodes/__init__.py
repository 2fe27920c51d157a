# SPDX-License-Identifier: Apache-2.0
"""
Which recorded episodes a learner uses: `selection` filters by outcome and finds the bag, `stock`
knows what is new, and `intake` takes what is announced.
"""
