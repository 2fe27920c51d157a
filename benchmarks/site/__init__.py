# SPDX-License-Identifier: Apache-2.0
"""
The processes of a site: a PostgreSQL, several routers that share their state in it, and policy
servers. Started by the benchmarks `fleet_growth` and `site_faults`, and by tests. Main thread.
"""
