"""
The hunt: random operators, deaths, restarts and hostile answers against a whole edge and a whole
router core, in virtual time.

    turns                        a body that blocks, run by a driver that decides when it goes on
    violation                    what is looked for
    edge_checker, router_checker invariants, from what crosses the boundary; no product code
    edge_model, edge_servers     the edge as its node wires it, with servers, a robot, an operator
    router_model, router_servers the router core with replicas, robots, an operator and a folder
    edge_rules, router_rules     what may happen between two steps
    run                          a seeded random driver for both, and what it found
"""
