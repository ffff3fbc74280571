#!/usr/bin/env node
// SPDX-License-Identifier: Apache-2.0 OR MIT
// clock.js COUNT [CLOCK...]: reads each clock COUNT times; prints its name and ns per read. Exits 3 if one went backwards.
"use strict";

const CLOCKS = { REALTIME: Date.now, MONOTONIC: process.hrtime.bigint };

function readMany(name, count) {
  const read = CLOCKS[name];
  const startNs = process.hrtime.bigint();
  let last = read();
  for (let i = 0; i < count; i++) {
    const now = read();
    if (now < last) {
      console.error(`${name} went backwards: ${now} after ${last}`);
      process.exit(3);
    }
    last = now;
  }
  console.log(`${name} ${(Number(process.hrtime.bigint() - startNs) / count).toFixed(1)}`);
}

const [count, ...chosen] = process.argv.slice(2);
const names = chosen.length > 0 ? chosen : Object.keys(CLOCKS);
if (!(Number(count) >= 1) || !names.every((name) => Object.hasOwn(CLOCKS, name))) {
  console.error(`usage: clock.js COUNT [CLOCK...]\nclocks: ${Object.keys(CLOCKS).join(" ")}`);
  process.exit(2);
}
for (const name of names) readMany(name, Number(count));
