# SPDX-License-Identifier: Apache-2.0
"""
A site: a PostgreSQL, several routers that share their state in it, policy servers, robots.

`processes` starts routers and servers for the benchmark `fleet_growth`; `fault_fleet` starts a
whole site in two networks for `site_faults` (`fault_layout` has its parts, a `forwarder` is a link
of a router), `faults` lets its parts fail while an `operator` gives commands in a thread of its
own, `witness` writes down what passes, and `check` judges what is left. `postgres` is also used by
tests. Main thread.
"""
