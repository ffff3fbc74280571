// SPDX-License-Identifier: Apache-2.0 OR MIT

// For each line of input that names a call, prints the nanoseconds that it takes.

const READS = 5_000;
const CALLS = {
  "performance.now()": () => performance.now(),
  "Date.now()": () => Date.now(),
};

// The results, so that no call is optimised away.
let seen = 0;

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (call) => {
    const read = CALLS[call];
    const begun = process.hrtime.bigint();
    for (let i = 0; i < READS; i++) seen += read();
    console.log(Number(process.hrtime.bigint() - begun) / READS);
  });
