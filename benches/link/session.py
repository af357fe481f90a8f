#!/usr/bin/env python3
"""A whole session on the bundled demo in a pseudo-terminal: the bytes that a terminal receives, and how long a key takes over a slow line.

    pip install pyte
    benches/link/session.py PARING [PARING…] [--times 3] [--size 120x40] [--rate BYTES_A_SECOND --delay MS]

The keys are always the same: wait for proposals, go through the rows, drag a ratio, approve all, run, look at the evaluation, accept, detach.
What is profiled and proposed is the same for all programs (a seed); how many frames a measurement takes is not, so each is run several times, in
turn. With --rate and --delay the line between program and terminal takes so many bytes a second and so long each way, like an SSH session
over a poor network: the program is read no faster, and blocks as it would there.

Only keys and words that every version has are used, so that an older program can stand beside a newer one.
"""

import argparse, collections, fcntl, os, pty, re, select, shutil, statistics, struct, subprocess, sys, tempfile, termios, threading, time

import pyte

OPEN = "open demo:cnn --name link --limit 200 --calib-limit 600 --threads 2 --budget macs=0.8,drop=40 --seed=1".split()
END_OF_FRAME = b"\x1b[?2026l"


class Line:
    """The program on a terminal, at the end of a line."""

    def __init__(self, program, home, columns, rows, rate, delay):
        self.rate, self.delay = rate, delay
        self.screen = pyte.Screen(columns, rows)
        self.stream = pyte.ByteStream(self.screen)
        self.lock = threading.Lock()
        self.bytes, self.frames, self.largest, self.open, self.tail = 0, 0, 0, 0, b""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PARING_", "OPENAI_")) and k not in ("TMUX", "NO_COLOR")}
        for sub in ("home", "run", "config"):
            os.makedirs(os.path.join(home, sub), exist_ok=True)
        env |= {"PARING_HOME": home + "/home", "HOME": home + "/home", "XDG_RUNTIME_DIR": home + "/run", "XDG_CONFIG_HOME": home + "/config"}
        env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8", "PARING_PATIENCE": "0.1"}
        self.env = env
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execve(program, [program, *OPEN], env)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.way = collections.deque()
        threading.Thread(target=self.read, daemon=True).start()
        threading.Thread(target=self.arrive, daemon=True).start()

    def read(self):
        """Takes what the program writes, no faster than the line."""
        free = time.monotonic()
        while True:
            try:
                data = os.read(self.fd, 1024 if self.rate else 65536)
            except OSError:
                break
            if not data:
                break
            if self.rate:
                free = max(free, time.monotonic()) + len(data) / self.rate
                time.sleep(max(0.0, free - time.monotonic()))
            self.way.append((time.monotonic() + self.delay, data))
        self.way.append((time.monotonic() + self.delay, None))

    def arrive(self):
        """Shows it when it has come."""
        while True:
            if not self.way or self.way[0][0] > time.monotonic():
                time.sleep(0.0005)
                continue
            data = self.way.popleft()[1]
            if data is None:
                return
            with self.lock:
                self.stream.feed(data)
                self.bytes += len(data)
                self.count(data)
            if b"\x1b[6n" in data:
                self.press(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")

    def count(self, data):
        """Frames end where a synchronized update does."""
        rest = self.tail + data
        parts = rest.split(END_OF_FRAME)
        for part in parts[:-1]:
            self.frames += 1
            self.largest = max(self.largest, self.open + len(part) - len(self.tail) + len(END_OF_FRAME))
            self.open, self.tail = 0, b""
        self.open += len(parts[-1]) - len(self.tail)
        self.tail = parts[-1][-(len(END_OF_FRAME) - 1):]

    def text(self):
        with self.lock:
            return "\n".join(self.screen.display)

    def press(self, keys):
        time.sleep(self.delay)
        os.write(self.fd, keys.encode())

    def wait(self, what, ok, within=120):
        began = time.monotonic()
        while True:
            text = self.text()
            if ok(text):
                return time.monotonic() - began
            if time.monotonic() - began > within:
                sys.exit(f"waited {within} s for {what}; the screen shows:\n{text}")
            time.sleep(0.002)

    def quiet(self, seconds):
        """Waits until nothing has come for so long."""
        before, since = self.bytes, time.monotonic()
        while time.monotonic() - since < seconds:
            time.sleep(0.02)
            if self.bytes != before:
                before, since = self.bytes, time.monotonic()


def review(text):
    found = re.search(r"review (\d+)/(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def session(program, size, rate, delay):
    home = tempfile.mkdtemp(prefix="paring-link-")
    line = Line(program, home, *size, rate, delay)
    keys = []

    def key(k, what, ok):
        """Presses a key and tells when the screen shows what it does."""
        began = time.monotonic()
        line.press(k)
        line.wait(what, ok)
        keys.append((what, time.monotonic() - began))

    try:
        # While the profile runs and rows are alive: the help comes and goes.
        line.wait("the first screen", lambda s: "paring" in s and "layers" in s)
        time.sleep(1.0)
        for _ in range(5):
            key("?", "help while profiling", lambda s: "next row or line" in s)
            key("\x1b", "back while profiling", lambda s: "next row or line" not in s)
        line.wait("proposals", lambda s: "interrupts" not in s and (review(s) or (0, 0))[1] > 0)
        at = {"profiled": line.bytes}
        line.quiet(1.0)
        for k in "jjjj]][[kkkk":
            line.press(k)
            time.sleep(0.15)
        line.press("\x1b")
        line.quiet(0.5)
        at["moved"] = line.bytes
        line.press("Y")
        line.wait("all settled", lambda s: (r := review(s)) and r[0] == r[1] > 0)
        line.press("R")
        line.wait("the verdict", lambda s: "verdict" in s and "accepts" in s)
        at["ran"] = line.bytes
        for view in "23451":
            line.press(view)
            line.quiet(0.4)
        at["views"] = line.bytes
        line.press("C")
        line.wait("round 2", lambda s: "round 2" in s)
        line.wait("silence", lambda s: "review" in s and "interrupts" not in s)
        line.quiet(2.0)
        whole = line.bytes
        idle, frames = line.bytes, line.frames
        time.sleep(10.0)
        idle = line.bytes - idle
        return {"bytes": whole, "frames": frames, "largest": line.largest, "idle": idle, "keys": keys, "at": at}
    finally:
        subprocess.run([program, "stop", "link"], env=line.env, capture_output=True)
        shutil.rmtree(home, ignore_errors=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("programs", nargs="+")
    p.add_argument("--times", type=int, default=3)
    p.add_argument("--size", default="120x40")
    p.add_argument("--rate", type=float, default=0, help="bytes a second; 0: as fast as it goes")
    p.add_argument("--delay", type=float, default=0, help="milliseconds each way")
    a = p.parse_args()
    size = tuple(int(n) for n in a.size.split("x"))
    found = {program: [] for program in a.programs}
    for _ in range(a.times):
        for program in a.programs:
            found[program].append(session(os.path.abspath(program), size, a.rate, a.delay / 1e3))
    first = None
    for program, runs in found.items():
        total = statistics.median(r["bytes"] for r in runs)
        first = first or total
        parts = ", ".join(f"{name} {statistics.median(r['at'][name] for r in runs):.0f}" for name in runs[0]["at"])
        seconds = sorted(s for r in runs for _, s in r["keys"])
        print(f"{program}: {total:.0f} bytes ({', '.join(str(r['bytes']) for r in runs)}), {total / first:.2f}x of the first; up to: {parts}")
        print(f"  {statistics.median(r['frames'] for r in runs):.0f} frames, the largest {max(r['largest'] for r in runs)} bytes;"
              f" idle for 10 s: {max(r['idle'] for r in runs)} bytes;"
              f" key to screen: median {statistics.median(seconds) * 1e3:.0f} ms, the slowest of {len(seconds)} {seconds[-1] * 1e3:.0f} ms")


if __name__ == "__main__":
    main()
