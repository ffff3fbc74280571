# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash disable=SC2016,SC2154
#
# Checks of the host in examples/dispatch, whose file is `dispatch`. Sourced by examples/test, as checks.sh is.

# Checks that a guest's identities trap a few times each, of 200000 calls in each of its threads.
traps_are_few() {
	timeout 60 "$dispatch" --log "$@" 2>"$work/log" || return
	awk '/system calls trapped/ { found = 1; print; if ($4 > 5000) many = 1; if ($8 < 2) many = 1 }
		END { exit many || !found }' "$work/log"
}

prints() {
	local wanted=$1 got
	shift
	got=$(timeout 60 "$@") || return
	[ "$got" = "$wanted" ] || {
		printf 'it printed: %s\n' "$got"
		return 1
	}
}

test_dispatch() {
	local of
	of=$(dirname "$dispatch")
	check "dispatch: instructions that make answered calls trap no more" traps_are_few "$of/identities" 1
	check "dispatch: nor do those that several threads execute" traps_are_few "$of/identities" 8
	test_clocks dispatch "$dispatch" clock-glibc clock-glibc-static clock-glibc-static-pie clock-musl clock-musl-static clock-go
	check "dispatch: time stays ordered" exits_with 0 "$dispatch" "$programs/torture" -s 3 -m same,causal
	check "dispatch: the exit status comes back" exits_with 7 "$dispatch" /bin/sh -c 'exit 7'
	check "dispatch: the signal comes back" test "$(bash -c "$dispatch /bin/sh -c 'kill -TERM \$\$'; echo \$?" 2>&1 | tail -1)" = 143
	printf '#!/usr/bin/env -S printf %%s,%%s\n' >"$work/script"
	printf '#!%s one argument\n' "$work/script" >"$work/nested"
	chmod +x "$work/script" "$work/nested"
	check "dispatch: scripts have the arguments that the kernel gives them" \
		prints "$(exec "$work/nested")" "$dispatch" /bin/sh -c "exec $work/nested"
	check "dispatch: a program knows its own file" prints "$(readlink -f /usr/bin/readlink)" "$dispatch" /usr/bin/readlink /proc/self/exe
	check "dispatch: programs by a descriptor are hosted" \
		prints yes "$dispatch" /usr/bin/python3 -c 'import os; os.execve(os.open("/bin/echo", os.O_RDONLY), ["echo", "yes"], {})'
	check "dispatch: descriptors of the host stay open" \
		prints yes "$dispatch" /usr/bin/python3 -c 'import os; os.closerange(3, 5000); os.execv("/bin/echo", ["echo", "yes"])'
	check "dispatch: what cannot be executed has the kernel's error" \
		prints "13 2 8 20 13 13" "$dispatch" /usr/bin/python3 -c '
import os
def error(path):
    try: os.execv(path, ["x"])
    except OSError as e: return e.errno
open("'"$work"'/text", "w").write("no program")
os.chmod("'"$work"'/text", 0o755)
os.mkfifo("'"$work"'/fifo", 0o644)
os.mkfifo("'"$work"'/executable-fifo", 0o755)
print(error("/etc/passwd"), error("/nonexistent"), error("'"$work"'/text"), error("/etc/passwd/x"),
    error("'"$work"'/fifo"), error("'"$work"'/executable-fifo"))'
	check "dispatch: a process of many programs" \
		prints 100 "$dispatch" /bin/bash -c 'for i in $(seq 50); do /bin/echo $i; (echo $BASHPID | grep -c .); done | wc -l'
	check "dispatch: signals that are blocked while a call waits" \
		prints "usr1 ok" "$dispatch" /usr/bin/perl -MPOSIX -e '
$SIG{USR1} = sub { print "usr1 " }; $| = 1;
my $all = POSIX::SigSet->new; $all->fillset; my $old = POSIX::SigSet->new;
sigprocmask(SIG_BLOCK, $all, $old); kill USR1 => $$; my $most = POSIX::SigSet->new; $most->fillset; $most->delset(SIGUSR1);
sigsuspend($most); print "ok"'
	check "dispatch: a missing file is refused with a message" exits_with 126 "$dispatch" /nonexistent
}
