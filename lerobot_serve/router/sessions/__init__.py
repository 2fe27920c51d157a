# SPDX-License-Identifier: Apache-2.0
"""
Open the sessions of clients in every slot, keep them alive, reopen and close them. Called by api
(services) and monitoring (expired sessions). SessionManager runs in the thread `control`; calls to
replicas run in the threads of ReplicaCallPool. State is written under RoutingTable.lock.
"""
