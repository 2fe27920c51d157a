"""
The hunt: random operators, deaths, restarts and hostile answers against a whole edge and a whole
router core, in virtual time.

    turns           a body that blocks, run by a driver that decides when it goes on
    edge_checker    invariants of an edge, from what crosses its boundary; knows no product code
    edge_model      the edge as its node wires it, with servers, a robot and an operator
    router_checker  invariants of a router; knows no product code
    router_model    the router core with replicas, robots, an operator and a folder
    run             a seeded random driver for both, and what it found
"""
