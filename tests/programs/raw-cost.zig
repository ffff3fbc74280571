// SPDX-License-Identifier: Apache-2.0 OR MIT

//! Clock reads by Zig's standard library, for tests/programs/raw-cost.c.

const linux = @import("std").os.linux;

export fn zig_syscall2() void {
    var now: linux.timespec = undefined;
    _ = linux.syscall2(.clock_gettime, 1, @intFromPtr(&now));
}

export fn zig_gettimeofday() void {
    var now: linux.timeval = undefined;
    _ = linux.gettimeofday(&now, null);
}
