"""An event stream of the standard library: plays a file byte for byte.

usage: replay.py FRAMES PORTFILE

Between the recorded frames stand frames that the recordings lack: canaries
(full and bare), an event of type external, JSON null. Each connection gets the
whole stream, in small pieces; the second one is told to go away (204).
"""
import http.server
import json
import sys

frames = open(sys.argv[1], "rb").read()
ID = b'[{"topic":"eqiad.mediawiki.recentchange","partition":0,"timestamp":1772536525049}]'
META = {"id": "11111111-2222-4333-8444-555555555555", "dt": "2026-03-03T11:15:25.048Z", "domain": "a.example.org"}


def frame(value):
    return b"event: message\nid: " + ID + b"\ndata: " + json.dumps(value).encode() + b"\n\n"


injected = (
    frame({"$schema": "/mediawiki/recentchange/1.0.1", "meta": {"domain": "canary", "dt": "2020-04-10T19:11:20.942Z", "stream": "mediawiki.recentchange"}})
    + frame({"$schema": "/mediawiki/recentchange/1.0.1", "meta": {"domain": "canary"}})
    + frame({"$schema": "/mediawiki/recentchange/1.0.0", "meta": META, "type": "external", "namespace": 0, "title": "Q1"})
    + frame(None)
    + frame({"meta": dict(META, id="11111111-2222-4333-8444-555555555556"), "type": None})
)
served = 0


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        global served
        served += 1
        if served > 1:
            self.send_response(204)
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Connection", "close")
        self.end_headers()
        body = frames + injected
        for i in range(0, len(body), 777):
            self.wfile.write(body[i : i + 777])
            self.wfile.flush()
        self.close_connection = True

    def log_message(self, *args):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[2] + ".tmp", "w") as f:
    f.write(str(server.server_address[1]))
import os

os.rename(sys.argv[2] + ".tmp", sys.argv[2])
server.serve_forever()
