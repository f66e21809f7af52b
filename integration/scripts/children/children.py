#!/usr/bin/env python3
"""children.py SERVER PATH: one getChildren with kazoo. Prints "names N" or "code C", then the number of connections made."""

import sys

from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import KazooException

connects = 0


def listener(state):
    global connects
    if state == KazooState.CONNECTED:
        connects += 1


client = KazooClient(hosts=sys.argv[1], timeout=30)
client.add_listener(listener)
client.start(timeout=60)
try:
    print("names", len(client.get_children(sys.argv[2])))
except KazooException as e:
    print("code", e.code)
session = client.client_id[0]
client.exists("/")
assert client.client_id[0] == session
print("connects", connects)
client.stop()
client.close()
