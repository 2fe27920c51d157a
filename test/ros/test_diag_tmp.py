from __future__ import annotations
import time
from test_edge_controller import *
def test_diag(processes, seen, wait_until):
    processes.start('policy_server', 'policy_server')
    start_robot(processes)
    wait_until(lambda: seen.played, 'actions', 60)
    time.sleep(20)
    l=seen.last
    open('/tmp/diag.txt','a').write(f"{__import__('lerobot_serve').__file__} sent {l.requests_sent} accepted {l.chunks_accepted} rt {l.round_trip_ms:.0f} net {l.network_ms:.0f} missed {l.ticks_missed}/{l.ticks} stalls {l.stalls} "+str({d.reason:d.count for d in l.drops})+'\n')
