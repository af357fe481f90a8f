"""Records what a real server answers, as a case that replays: a proxy between `paring` and the server, which writes every answer's bytes as
they came. By hand; the case's `expect` is then filled in from what was seen.

    python3 tests/agents/record.py http://127.0.0.1:8080/v1 8099 tests/agents/cases/recorded_NAME.json "which server and model"
    OPENAI_BASE_URL=http://127.0.0.1:8099/v1 …

The file is written anew after each answer, so that stopping it loses nothing.
"""

import http.client
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

BASE, PORT, OUT, ABOUT = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
AT = urlsplit(BASE)
CASE = {"about": ABOUT, "models": [], "answers": [], "last_repeats": False, "expect": {}}


class Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.pass_on("GET", None)

    def do_POST(self):
        self.pass_on("POST", self.rfile.read(int(self.headers.get("content-length", 0))))

    def pass_on(self, method, body):
        server = http.client.HTTPConnection(AT.hostname, AT.port, timeout=900)
        headers = {"content-type": "application/json", "accept-encoding": "identity"}
        server.request(method, self.path, body, headers)
        answer = server.getresponse()
        self.send_response(answer.status)
        kind = answer.getheader("content-type", "")
        self.send_header("content-type", kind)
        self.end_headers()
        whole = b""
        try:
            while piece := answer.read1(65536):
                whole += piece
                self.wfile.write(piece)
                self.wfile.flush()
        finally:
            text = whole.decode("utf-8", "replace")
            if method == "POST":
                CASE["answers"].append({"status": answer.status, "headers": {"content-type": kind}, "raw": text})
            elif answer.status == 200:
                CASE["models"] = [m.get("id") or m.get("name") for m in json.loads(text).get("data", [])]
            with open(OUT, "w") as out:
                json.dump(CASE, out, indent=1, ensure_ascii=False)
                out.write("\n")


ThreadingHTTPServer(("127.0.0.1", PORT), Proxy).serve_forever()
