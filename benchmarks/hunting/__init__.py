# SPDX-License-Identifier: Apache-2.0
"""
Random operators, crashes, restarts and hostile replies against a whole edge and a whole router in
virtual time. The checkers see only what crosses the boundary and share no code with the product.
Run by test/unit/benchmarks/hunting, and at length by `make bench BENCH=hunt`; one driver thread,
one stepped thread of the requester.
"""
