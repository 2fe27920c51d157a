# SPDX-License-Identifier: Apache-2.0
"""
Random operators, crashes, restarts and hostile replies against a whole edge and a whole router in
virtual time. The checkers see only what crosses the boundary and share no code with the product.
Run by test/unit/fuzz, and at length by `make fuzz`; one driver thread, one stepped thread of the
requester.
"""
