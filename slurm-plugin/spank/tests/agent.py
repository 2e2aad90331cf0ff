"""Stands in for hop-agent: prints each line that the plugin sends, once it has seen that the peer is root."""

import os
import socket
import struct
import sys

path = sys.argv[1]
os.umask(0o077)
os.makedirs(os.path.dirname(path), exist_ok=True)
if os.path.exists(path):
    os.unlink(path)
server = socket.socket(socket.AF_UNIX)
server.bind(path)
server.listen(64)
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    uid = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1]
    with peer, peer.makefile() as lines:
        for line in lines:
            print(line.strip() if uid == 0 else f"not root: {uid}", flush=True)
