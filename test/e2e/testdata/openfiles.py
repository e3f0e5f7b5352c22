# Two processes that hold files open and do with them what they are asked, by lines of
# "SEED COUNT" on the port in the first argument. What came of each step is the answer.
import fcntl
import http.server
import mmap
import os
import random
import sys
import threading
import zlib

SLOTS, FILES, SIZE = 6, 4, 200_000


class Holder:
    def __init__(self, who):
        self.who, self.fds, self.maps = who, {}, {}

    def step(self, rng):
        name = "f%d" % rng.randrange(FILES)
        other = "f%d" % rng.randrange(FILES)
        slot, slot2 = rng.randrange(SLOTS), rng.randrange(SLOTS)
        at, n = rng.randrange(SIZE), rng.randrange(1, 20_000)
        data = rng.randbytes(n)
        flags = rng.choice([os.O_RDWR, os.O_RDWR, os.O_RDONLY, os.O_WRONLY, os.O_WRONLY | os.O_APPEND,
                            os.O_RDWR | os.O_APPEND, os.O_RDWR | os.O_TRUNC])
        how = rng.choice([(mmap.MAP_SHARED, mmap.PROT_READ), (mmap.MAP_PRIVATE, mmap.PROT_READ)] * 3 +
                         [(mmap.MAP_SHARED, mmap.PROT_READ | mmap.PROT_WRITE)])
        mode = rng.choice([0o644, 0o444, 0o200, 0o600, 0o755])
        fd = self.fds.get(slot, -1)

        def open_():
            self.close(slot)
            self.fds[slot] = os.open(name, flags | os.O_CREAT, 0o644)

        def fill():
            with open(name, "wb") as f:
                f.write(random.Random(at).randbytes(SIZE))

        def map_():
            self.maps.pop(slot, None)
            self.maps[slot] = mmap.mmap(fd, os.fstat(fd).st_size, *how), how

        def no_append():  # gVisor takes some of it, and Linux none
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_APPEND:
                raise OSError(22, "")

        def threads():
            ts = [threading.Thread(target=os.pwrite, args=(fd, bytes([i]) * n, at + i * n)) for i in range(2)]
            no_append()
            [t.start() for t in ts] and [t.join() for t in ts]

        def write_map():
            m, how = self.maps[slot]
            end = self.mapped(slot)
            if how[1] & mmap.PROT_WRITE and end:
                m[at % end] = n % 256

        def futime():  # what gVisor does by the name, which may be gone
            if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
                raise OSError(22, "")
            os.utime(fd, ns=(at, at * 1000 + 9))

        def link():
            if other != name and os.path.exists(name) and os.path.exists(other):
                os.unlink(other)
            os.link(name, other)

        def send():
            no_append()
            src = self.fds[slot2]
            if not os.path.sameopenfile(fd, src):
                return os.sendfile(fd, src, at, n)

        def splice():
            no_append()
            r, w = os.pipe()
            try:
                os.write(w, data[:4000])
                return os.splice(r, fd, len(data[:4000]))
            finally:
                os.close(r), os.close(w)

        steps = [(6, "open", open_), (2, "fill", fill), (0.5, "close", lambda: self.close(slot)),
                 (2, "pwrite", lambda: os.pwrite(fd, data, at)), (2, "write", lambda: os.write(fd, data)),
                 (1, "threads", threads), (1, "empty write", lambda: os.pwrite(fd, b"", at)),
                 (4, "pread", lambda: crc(os.pread(fd, n, at))), (2, "read", lambda: crc(os.read(fd, n))),
                 (1, "truncate", lambda: os.ftruncate(fd, at)), (1, "truncate by name", lambda: os.truncate(name, at)),
                 (1, "allocate", lambda: os.posix_fallocate(fd, at, n)),
                 (1, "sync", lambda: os.fsync(fd)), (1, "datasync", lambda: os.fdatasync(fd)),
                 (4, "map", map_), (4, "read map", lambda: crc(self.maps[slot][0][: self.mapped(slot)])),
                 (1, "write map", write_map), (1, "unmap", lambda: self.maps.pop(slot) and None),
                 (1, "flush map", lambda: self.maps[slot][0].flush()),
                 (1, "send", send), (1, "splice", splice), (1, "seek", lambda: os.lseek(fd, -(n % 100), os.SEEK_END)),
                 (1, "stat", lambda: stat(os.fstat(fd))), (1, "lstat", lambda: stat(os.lstat(name))),
                 (2, "cat", lambda: crc(open(name, "rb").read())),
                 (1.5, "unlink", lambda: os.unlink(name)), (1, "rename", lambda: os.rename(name, other)),
                 (1.5, "link", link), (0.5, "chmod", lambda: os.chmod(name, mode)),
                 (0.3, "utime", lambda: os.utime(name, ns=(at, at * 1000 + 7))),
                 (0.3, "futime", futime)]
        what = rng.choices(steps, [s[0] for s in steps])[0]
        try:
            got = what[2]()
        except (OSError, ValueError, KeyError) as e:
            got = type(e).__name__ + " " + str(getattr(e, "errno", e))
        return f"{self.who} {what[1]} {name} {other} slot {slot} {slot2} at {at} {n} {flags:o}: {got}"

    def mapped(self, slot):  # what can be read without SIGBUS
        m = self.maps[slot][0]
        return min(len(m), m.size())

    def close(self, slot):
        self.maps.pop(slot, None)
        if slot in self.fds:
            os.close(self.fds.pop(slot))


def crc(b):
    return len(b), zlib.crc32(b)


def stat(s):
    return oct(s.st_mode), s.st_nlink, s.st_size


def serve(ask, tell, who):
    h = Holder(who)
    while line := ask.readline():
        rng = random.Random(line)
        tell.write(h.step(rng) + "\n")
        tell.flush()


def times():
    out = []
    for name in sorted(os.listdir(".")):
        s = os.lstat(name)
        out.append(f"{name} {stat(s)} {s.st_mtime_ns}")
    return "\n".join(out) + "\n"


def start(who):
    r1, w1 = os.pipe()
    r2, w2 = os.pipe()
    if os.fork() == 0:
        os.close(w1), os.close(r2)
        serve(os.fdopen(r1), os.fdopen(w2, "w"), who)
        os._exit(0)
    os.close(r1), os.close(w2)
    return os.fdopen(w1, "w"), os.fdopen(r2)


os.makedirs(sys.argv[2], exist_ok=True)
os.chdir(sys.argv[2])
holders = [start("A"), start("B")]


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        seed, count = self.rfile.read(int(self.headers["Content-Length"])).decode().split()
        if count == "times":
            return self.answer(times())
        rng, out = random.Random(seed), ""
        for _ in range(int(count)):
            ask, tell = rng.choice(holders)
            ask.write(f"{rng.random()}\n")
            ask.flush()
            out += tell.readline() or "it has ended\n"
        self.answer(out)

    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *args):
        pass


http.server.HTTPServer(("", int(sys.argv[1])), Handler).serve_forever()
