import asyncio, base64, http.server, inspect, json, os, socketserver, sys, threading, traceback, types, urllib.parse

name, most, code = sys.argv[1], int(sys.argv[2]), sys.argv[3]
LARGEST = 8 << 20  # of a request
PIECE = 1 << 16

module = types.ModuleType("function")
sys.modules["function"] = module
exec(compile(code, "function.py", "exec"), module.__dict__)
handler = module
for part in name.split("."):
    handler = getattr(handler, part)
if not callable(handler):
    sys.exit(name + " is not a function")
room = threading.BoundedSemaphore(most) if most else None


class Refused(Exception):
    pass


def as_bytes(value, headers):
    if value is None:
        return b""
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    headers.setdefault("content-type", ["application/json"])
    return json.dumps(value, separators=(",", ":")).encode()


def parted(value):
    if value is None:
        return 204, {}, None
    if not isinstance(value, dict):
        return 200, {}, value
    headers = {}
    for key, said in (value.get("headers") or {}).items():
        if said is not None:
            headers[str(key).lower()] = [str(v) for v in said] if isinstance(said, (list, tuple)) else [str(said)]
    body = value.get("body")
    if "body_base64" in value:
        body = base64.b64decode(value["body_base64"] or "")
    return int(value.get("status", 200)), headers, body


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def body(self):
        if "chunked" not in self.headers.get("Transfer-Encoding", "").lower():
            length = int(self.headers.get("Content-Length") or 0)
            if length > LARGEST:
                raise Refused
            return self.rfile.read(length)
        data = b""
        while size := int(self.rfile.readline(100).split(b";")[0], 16):
            if len(data) + size > LARGEST:
                raise Refused
            data += self.rfile.read(size)
            self.rfile.readline(PIECE)
        while self.rfile.readline(PIECE).strip():
            pass
        return data

    def say(self, status, text):
        self.close_connection = True
        self.begin(status, {"content-type": ["application/json"]}, len(data := json.dumps({"error": text}).encode()))
        self.wfile.write(data)

    def begin(self, status, headers, length):
        fields = [(key, value) for key, values in headers.items() for value in values]
        for key, value in fields:
            if not key or set(key + value) & set("\r\n\0") or set(key) & set(": "):
                raise ValueError("a header that cannot be sent: " + repr(key))
        self.send_response(status)
        for key, value in fields:
            if key not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(key, value)
        if length is None:
            self.send_header("Transfer-Encoding", "chunked")
        elif status != 204:
            self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.begun = True

    async def respond(self, result):
        if inspect.isawaitable(result):
            result = await result
        status, headers, body = parted(result)
        flows = hasattr(body, "__aiter__") or hasattr(body, "__iter__")
        if not flows or isinstance(body, (str, bytes, bytearray, dict, list, tuple)):
            data = as_bytes(body, headers)
            self.begin(status, headers, len(data))
            if self.command != "HEAD" and status != 204:
                self.wfile.write(data)
            return
        self.begin(status, headers, None)
        if hasattr(body, "__aiter__"):
            async for piece in body:
                self.piece(as_bytes(piece, {}))
        else:
            for piece in body:
                self.piece(as_bytes(piece, {}))
        self.wfile.write(b"0\r\n\r\n")

    def piece(self, data):
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    def answer(self):
        self.begun = False
        if self.headers.get("Upgrade", "").lower() == "websocket":
            return self.say(501, "functions take no WebSockets here")
        try:
            data = self.body()
        except Refused:
            return self.say(413, "the request is larger than %d bytes" % LARGEST)
        except ValueError:
            return self.say(400, "the body of the request is malformed")
        if room and not room.acquire(blocking=False):
            return self.say(429, "the function has as many requests under way as it may have")
        try:
            where = urllib.parse.urlsplit(self.path)
            headers = {}
            for key, value in self.headers.items():
                headers.setdefault(key.title(), []).append(value)
            asyncio.run(self.respond(handler({
                "method": self.command, "path": urllib.parse.unquote(where.path), "raw_query": where.query,
                "headers": headers, "body_base64": base64.b64encode(data).decode(),
            })))
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True
        except BaseException:
            traceback.print_exc()
            self.close_connection = True
            if not self.begun:
                self.say(500, "the function ended with an error; the log of its service has it")
        finally:
            if room:
                room.release()

    def __getattr__(self, what):
        if what.startswith("do_"):
            return self.answer
        raise AttributeError(what)

    def log_message(self, *said):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def server_bind(self):  # without asking the network for this machine's name
        socketserver.TCPServer.server_bind(self)


Server(("", int(os.environ["PORT"])), Handler).serve_forever()
