"""A server-sent event stream of the standard library, none of Weir's code.

usage: sse_server.py PORTFILE FRAMES [INJECTED]

Plays the blocks of FRAMES byte for byte; one block of INJECTED stands after
each of them until they are used up, the rest at the end. The first connection
gets everything, in pieces that break lines and characters; every later one is
told that there is no more (204).
"""
import http.server
import itertools
import os
import re
import sys


def blocks(path):
    with open(path, "rb") as f:
        return re.findall(rb".*?\n\n|.+\Z", f.read(), re.S)


port_file, files = sys.argv[1], [blocks(p) for p in sys.argv[2:]]
body = b"".join(itertools.chain.from_iterable(itertools.zip_longest(*files, fillvalue=b"")))
piece = 777 if len(body) < 1 << 20 else 77_777
connections = itertools.count()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if next(connections) > 0:
            self.send_response(204)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        for i in range(0, len(body), piece):
            self.wfile.write(body[i : i + piece])
        self.close_connection = True

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(port_file + ".tmp", "w") as f:
    f.write(str(server.server_address[1]))
os.rename(port_file + ".tmp", port_file)
server.serve_forever()
