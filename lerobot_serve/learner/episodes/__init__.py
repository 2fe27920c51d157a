# SPDX-License-Identifier: Apache-2.0
"""
Which recorded episodes a learner uses: `selection` filters by outcome and finds the bag, `stock`
takes what is announced, and knows what is new.
"""
