# SPDX-License-Identifier: Apache-2.0
"""
One state for several routers of a site, in PostgreSQL: `state_url`. The thread `store` writes it,
the thread `state` reads what others wrote and elects the router that runs the rollout (see
storage), the executor applies it (SharedState). Routing reads memory only.
"""
