# SPDX-License-Identifier: Apache-2.0 OR MIT
"""asyncio-server.py PORT: an HTTP server on asyncio, which answers with the nanoseconds since 1970.

  /            times each request, and restarts the connection's keep-alive timer, as uvicorn does
  /cprofile    profiles a function of 2,500 calls by cProfile, and answers its time too
  /pyinstrument  ... by pyinstrument

Both profilers read the clock at each call and return of a Python function.
"""

import asyncio
import cProfile
import pstats
import sys
import time

KEEP_ALIVE_S = 5
# A profile's interval in seconds, below the tick of a COARSE clock: otherwise pyinstrument would read that one.
INTERVAL_S = 0.0005


def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)


def work():
    if fibonacci(15) != 610:
        raise ValueError("wrong result")


def by_cprofile():
    profile = cProfile.Profile()
    profile.runcall(work)
    if pstats.Stats(profile).total_tt < 0:
        raise ValueError("negative time")


def by_pyinstrument():
    import pyinstrument

    profiler = pyinstrument.Profiler(interval=INTERVAL_S, async_mode="disabled")
    profiler.start()
    work()
    if profiler.stop().duration < 0:
        raise ValueError("negative time")


ROUTES = {b"/": lambda: None, b"/cprofile": by_cprofile, b"/pyinstrument": by_pyinstrument}


class Connection(asyncio.Protocol):
    def __init__(self, loop):
        self.loop = loop
        self.received = b""
        self.timer = None

    def connection_made(self, transport):
        self.transport = transport

    def connection_lost(self, _):
        self.stop_timer()

    def stop_timer(self):
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def data_received(self, data):
        self.stop_timer()
        self.received += data
        while b"\r\n\r\n" in self.received:
            request, _, self.received = self.received.partition(b"\r\n\r\n")
            self.answer(request.split(b" ", 2)[1])
        self.timer = self.loop.call_later(KEEP_ALIVE_S, self.transport.close)

    def answer(self, path):
        began = time.perf_counter_ns()
        status = b"200 OK"
        try:
            ROUTES[path]()
        except (KeyError, ValueError):
            status = b"500 Internal Server Error"
        body = b"%d %d\n" % (time.time_ns(), time.perf_counter_ns() - began)
        self.transport.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body))


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(loop), "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())
