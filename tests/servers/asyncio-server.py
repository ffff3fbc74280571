# SPDX-License-Identifier: Apache-2.0 OR MIT
"""asyncio-server.py PORT: an HTTP server on asyncio, which answers with the nanoseconds since 1970. It times each request, and
restarts the connection's keep-alive timer, as uvicorn does."""

import asyncio
import sys
import time

KEEP_ALIVE_S = 5


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
            _, _, self.received = self.received.partition(b"\r\n\r\n")
            self.answer()
        self.timer = self.loop.call_later(KEEP_ALIVE_S, self.transport.close)

    def answer(self):
        began = time.perf_counter_ns()
        body = b"%d %d\n" % (time.time_ns(), time.perf_counter_ns() - began)
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))


async def main():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(loop), "127.0.0.1", int(sys.argv[1]))
    await server.serve_forever()


asyncio.run(main())
