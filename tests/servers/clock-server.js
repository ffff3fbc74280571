// SPDX-License-Identifier: Apache-2.0 OR MIT

// clock-server.js PORT: answers every request with the nanoseconds since 1970, and how long the answer took to make. It
// times each request as the middlewares of application monitoring do: a span with its start in milliseconds since 1970
// and its duration, the time until the first byte, and the user's own performance marks.

"use strict";

const http = require("http");
const { performance } = require("perf_hooks");

const totals = { requests: 0, spanNs: 0n, firstByteMs: 0, backwards: 0 };

function traced(handler) {
	return (request, response) => {
		const span = { startMs: Date.now(), start: process.hrtime.bigint() };
		const mark = performance.now();
		response.on("finish", () => {
			const durationNs = process.hrtime.bigint() - span.start;
			totals.requests += 1;
			totals.spanNs += durationNs;
			if (durationNs < 0n || Date.now() < span.startMs) totals.backwards += 1;
		});
		handler(request, response);
		totals.firstByteMs += performance.now() - mark;
	};
}

const server = http.createServer(
	traced((request, response) => {
		const began = process.hrtime.bigint();
		const ns = BigInt(Date.now()) * 1000000n;
		response.statusCode = totals.backwards === 0 ? 200 : 500;
		response.end(`${ns} ${process.hrtime.bigint() - began}\n`);
	}),
);
server.listen(Number(process.argv[2]), "127.0.0.1");
