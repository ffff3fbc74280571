# SPDX-License-Identifier: Apache-2.0 OR MIT
"""The servers, each with the commands that start it, load it and ask it for the time. `run` describes their use."""

import collections
import glob
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from email.utils import parsedate_to_datetime

HERE = os.path.dirname(os.path.abspath(__file__))
# The user nobody on Debian: PostgreSQL refuses to run as root.
NOBODY = 65534
CLIENTS = 8
# Time in which the compilers of Java and JavaScript finish.
WARM_UP_S = 1
# Called in the process of a load generator before it is executed: a place's, where clients are elsewhere.
LEAVE = None
# The Python of the servers, which the user nobody may execute.
PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


# What a server has done under load: a number of requests in a time.
Done = collections.namedtuple("Done", ["requests", "seconds"])


class Failed(Exception):
    """A promise was broken."""


def find(name):
    """Returns a program's path, also from the folders of PostgreSQL and of daemons on Debian; None if it is missing."""
    places = [os.environ.get("PATH", ""), *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True), "/usr/sbin"]
    return shutil.which(name, path=":".join(places))


def free_port():
    """Returns a free port below those that the kernel assigns to clients, so that none takes it by chance before its
    use."""
    while True:
        port = random.randrange(10_000, 32_000)
        with socket.socket() as s:
            if s.connect_ex(("127.0.0.1", port)) != 0:
                return port


def command(*words, **options):
    """Runs a command to its end, which must be successful, and returns its output."""
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300, **options
        )
    except subprocess.TimeoutExpired as expired:
        raise Failed(f"{words[0]}: still running after {expired.timeout:.0f} s") from None
    if done.returncode != 0:
        raise Failed(f"{' '.join(words)}: exit status {done.returncode}: {done.stdout.strip()}")
    return done.stdout


def client(*words, **options):
    """Runs a load generator or another client of a server, and returns its output."""
    return command(*words, preexec_fn=LEAVE, **options)


def numbers(pattern, text):
    found = re.search(pattern, text)
    if not found:
        raise Failed(f"no `{pattern}` in: {text}")
    return [float(each) for each in found.groups()]


class Server:
    """The common part of all servers. `needs` are the programs that it requires."""

    name = ""
    needs = ()
    # The noun of its requests.
    requests = "requests"
    # Resolution of the time that it returns, in nanoseconds.
    grain_ns = 1
    # Whether its load generator abandons the requests that are unanswered at its end: one for each client.
    abandons = False

    def __init__(self, folder, prefix=()):
        """`prefix` are words before the command that starts it."""
        self.folder, self.prefix = folder, [*prefix]
        self.port = free_port()
        self.user = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.geteuid() == 0 else {}
        self.process = None

    @classmethod
    def missing(cls):
        """Returns what it lacks here; None if nothing."""
        return next((program for program in cls.needs if not find(program)), None)

    def __enter__(self):
        os.mkdir(self.folder)
        if self.user:
            os.chown(self.folder, NOBODY, NOBODY)
        self.prepare()
        with open(f"{self.folder}.log", "w") as log:
            self.process = subprocess.Popen(
                [*self.prefix, *self.words()],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                **self.user,
            )
        end = time.monotonic() + 120
        while not self.is_ready():
            if self.process.poll() is not None or time.monotonic() > end:
                raise Failed(f"{self.name} did not start: {self.last_words()}")
            time.sleep(0.1)
        self.fill()
        return self

    def __exit__(self, *_):
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(120)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, 9)
            self.process.wait()

    def last_words(self):
        with open(f"{self.folder}.log") as log:
            return " / ".join(log.read().strip().splitlines()[-3:])

    def is_ready(self):
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self.port)) == 0

    def prepare(self):
        """Prepares it before its start."""

    def fill(self):
        """Prepares the load after its start."""

    def words(self):
        """Returns the command that starts it."""
        raise NotImplementedError

    def load(self, seconds):
        """Loads it for so many seconds, and returns what it has done; raises Failed if a request failed. On a busy machine it may
        answer none in that time: then for longer."""
        for _ in range(5):
            done = self.load_for(seconds)
            if done.requests:
                return done
            seconds *= 2
        raise Failed(f"it answered no request in {seconds // 2} s")

    def load_for(self, seconds):
        """The same for exactly that long."""
        raise NotImplementedError

    def time_ns(self):
        """Returns its time in nanoseconds since 1970."""
        raise NotImplementedError


class PostgreSQL(Server):
    name = "PostgreSQL"
    needs = ("postgres", "initdb", "pgbench", "psql")
    grain_ns = 1000
    # The protocol of its queries, which is measured along with the answer.
    load_options = ("-S", "-M", "prepared")

    def connect(self):
        return ["-h", "127.0.0.1", "-p", str(self.port), "-U", "bench"]

    def prepare(self):
        words = [find("initdb"), "-D", f"{self.folder}/data", "-A", "trust", "-U", "bench", "--no-sync", "--no-locale", "-E", "UTF8"]
        command(*words, cwd=self.folder, **self.user)

    def words(self):
        settings = ["listen_addresses=127.0.0.1", "shared_buffers=32MB", "jit=off", "max_connections=40", "autovacuum=off"]
        return [find("postgres"), "-D", f"{self.folder}/data", "-k", self.folder, "-p", str(self.port)] + [
            word for setting in settings for word in ("-c", setting)
        ]

    def ask(self, sql):
        return client(find("psql"), *self.connect(), "-d", "postgres", "-XAtqc", sql, cwd=self.folder)

    def is_ready(self):
        try:
            return self.ask("SELECT 1").strip() == "1"
        except Failed:
            return False

    def fill(self):
        client(find("pgbench"), *self.connect(), "-i", "-q", "-s", "1", "postgres", cwd=self.folder)

    def load_for(self, seconds):
        options = ["-n", *self.load_options, "-c", str(CLIENTS), "-j", "1", "-T", str(seconds), "postgres"]
        said = client(find("pgbench"), *self.connect(), *options, cwd=self.folder)
        failed = re.search(r"failed transactions: (\d+)", said)
        if failed and failed.group(1) != "0" or "aborted" in said:
            raise Failed(f"pgbench: {said}")
        (done,) = numbers(r"transactions actually processed: (\d+)", said)
        if not done:
            return Done(0, seconds)
        (per_second,) = numbers(r"tps = ([0-9.]+) \(without", said)
        return Done(done, done / per_second)

    def time_ns(self):
        return int(self.ask("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")) * 1000


class Explain(PostgreSQL):
    """Reads the clock twice for each row of each step of a plan."""

    name = "PostgreSQL, EXPLAIN ANALYZE"

    def fill(self):
        super().fill()
        with open(f"{self.folder}.sql", "w") as script:
            script.write("EXPLAIN (ANALYZE) SELECT count(*) FROM pgbench_accounts WHERE aid <= 2000;\n")
        self.load_options = ("-f", f"{self.folder}.sql")


class Redis(Server):
    name = "Redis"
    needs = ("redis-server", "redis-cli", "redis-benchmark")
    grain_ns = 1000

    def words(self):
        return [find("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]

    def fill(self):
        # Its benchmark takes a number of requests, not a time.
        self.per_second = self.benchmark(2000)

    def benchmark(self, requests):
        words = [find("redis-benchmark"), "-p", str(self.port), "-t", "get", "-c", str(CLIENTS), "-n", str(requests), "--csv"]
        said = client(*words)
        if "rror" in said:
            raise Failed(f"redis-benchmark: {said}")
        return numbers(r'"GET","([0-9.]+)"', said)[0]

    def load_for(self, seconds):
        requests = max(1000, int(seconds * self.per_second))
        self.per_second = self.benchmark(requests)
        return Done(requests, requests / self.per_second)

    def time_ns(self):
        seconds, microseconds = client(find("redis-cli"), "-p", str(self.port), "TIME").split()
        return int(seconds) * 1_000_000_000 + int(microseconds) * 1000


class Http(Server):
    """Servers that wrk loads."""

    abandons = True

    def url(self):
        return f"http://127.0.0.1:{self.port}/"

    def get(self):
        with urllib.request.urlopen(self.url(), timeout=120) as answer:
            return answer.read().decode(), answer.headers

    def fill(self):
        # The first answer may take much longer than others.
        self.get()

    def load_for(self, seconds):
        # A request that is answered within half a minute has not failed, because all processes share a few CPUs.
        said = client(find("wrk"), "-t", "1", "-c", str(CLIENTS), "-d", f"{seconds}s", "--timeout", "30s", self.url())
        if "Socket errors" in said or "Non-2xx" in said:
            raise Failed(f"wrk: {said}")
        (done,) = numbers(r"(\d+) requests in", said)
        (per_second,) = numbers(r"Requests/sec: *([0-9.]+)", said)
        if not done:
            return Done(0, seconds)
        return Done(done, done / per_second)

    def time_ns(self):
        return int(self.get()[0].split()[0])


class Nginx(Http):
    """Logs the time of each request."""

    name = "nginx, timed log"
    needs = ("nginx", "wrk")
    grain_ns = 1_000_000_000

    def prepare(self):
        with open(f"{self.folder}/nginx.conf", "w") as file:
            file.write(
                f"daemon off; worker_processes 2; pid {self.folder}/pid; error_log {self.folder}/error.log;\n"
                "events { worker_connections 64; }\n"
                "http {\n"
                "  log_format timed '$msec $request_time $status';\n"
                f"  access_log {self.folder}/access.log timed;\n"
                + "".join(
                    f"  {kind}_temp_path {self.folder}/{kind};\n" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
                )
                + f"  server {{ listen 127.0.0.1:{self.port}; location / {{ return 200 'here\\n'; }} }}\n"
                "}\n"
            )

    def words(self):
        return [find("nginx"), "-p", self.folder, "-e", f"{self.folder}/error.log", "-c", f"{self.folder}/nginx.conf"]

    def load_for(self, seconds):
        log = f"{self.folder}/access.log"
        os.truncate(log, 0)
        began = time.time()
        done = super().load_for(seconds)
        with open(log) as lines:
            # Its processes log in turn, and keep a time for all events that they found ready.
            for line in lines:
                at, took, _ = line.split()
                if not (began - 1 <= float(at) <= time.time() + 0.1 and 0 <= float(took) <= seconds + 60):
                    raise Failed(f"its log says, in seconds: {line.strip()}")
        return done

    def time_ns(self):
        return int(parsedate_to_datetime(self.get()[1]["Date"]).timestamp()) * 1_000_000_000


class Go(Http):
    name = "Go net/http"
    needs = ("clock-server", "wrk")

    def words(self):
        return [find("clock-server"), str(self.port)]


class Java(Http):
    name = "Java httpserver"
    needs = ("java", "wrk", "ClockServer.class")
    # Resolution of Instant.now() on some releases.
    grain_ns = 1000

    def words(self):
        classes = os.path.dirname(find("ClockServer.class"))
        return [find("java"), "-Xshare:auto", "-Xmx128m", "-Dsun.net.httpserver.nodelay=true", "-cp", classes, "ClockServer", str(self.port)]

    def fill(self):
        self.load(WARM_UP_S)


class Node(Http):
    name = "Node, traced requests"
    needs = ("node", "wrk")
    grain_ns = 1_000_000

    def words(self):
        return [find("node"), f"{HERE}/clock-server.js", str(self.port)]

    def fill(self):
        self.load(WARM_UP_S)


class Asyncio(Http):
    name = "Python asyncio"
    needs = ("wrk",)

    def words(self):
        return [PYTHON, f"{HERE}/asyncio-server.py", str(self.port)]


class Program(Server):
    """A program that ends by itself, served by `fastpath run`: nothing of it is left to attach."""

    def __enter__(self):
        os.mkdir(self.folder)
        return self

    def __exit__(self, *_):
        pass


class Timing(Program):
    """Reads the clock as fast as it can."""

    name = "pg_test_timing"
    needs = ("pg_test_timing",)
    requests = "reads"

    def load_for(self, seconds):
        said = command(*self.prefix, find("pg_test_timing"), "-d", str(seconds), cwd=self.folder, **self.user)
        if "backward" in said or "untouched" in said:
            raise Failed(f"pg_test_timing: {said}")
        (ns,) = numbers(r"including overhead: ([0-9.]+) ns", said)
        return Done(seconds * 1_000_000_000 / ns, seconds)


ALL = (PostgreSQL, Explain, Timing, Redis, Nginx, Go, Java, Node, Asyncio)
