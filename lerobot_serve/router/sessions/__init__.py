# SPDX-License-Identifier: Apache-2.0
"""
Sessions of clients: opened in every slot, kept alive, reopened, closed. Called by api (services)
and monitoring (expired clients). SessionManager runs in the thread `control`; calls to replicas
run in the pool of ReplicaCallPool. State is written under RoutingTable.lock.
"""
