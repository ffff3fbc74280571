# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# Checks of the loader. Sourced by examples/test, which must set `work` (a folder),
# `programs` (the folder of the test programs), `runner` (an emulator, or empty), `modes` (of tests/programs/torture.c), and the function
# `clock_calls COMMAND...`, which prints how many system calls for clocks COMMAND makes.

reads=1000

# shellcheck source=scripts/check
. scripts/check

exits_with() {
	local wanted=$1 status=0
	shift
	# shellcheck disable=SC2086 # an emulator's options
	timeout 60 $runner "$@" || status=$?
	[ "$status" -eq "$wanted" ] || {
		echo "exit status $status instead of $wanted"
		return 1
	}
}

# Repeats a command until it succeeds, up to ten times. While a publisher gets no CPU its page ages, and reads correctly
# go to the kernel: that happens on a busy machine, and is no fault.
at_last() {
	local attempt
	for attempt in 1 2 3 4 5 6 7 8 9 10; do
		if "$@"; then return; fi
		echo "that was attempt $attempt"
	done
	return 1
}

# Requires few system calls. A publisher whose own vDSO answers the clocks makes no system calls for its samples.
reads_without_calls() {
	at_last makes_few_calls "$@"
}

makes_few_calls() {
	local calls
	calls=$(clock_calls "$@") || return
	[ "${calls:-$reads}" -lt 50 ] || {
		echo "$calls system calls for $reads reads and more"
		return 1
	}
}

# Go reads only these two.
clocks_of() {
	case $1 in
	*-go) echo MONOTONIC REALTIME ;;
	*) echo MONOTONIC REALTIME BOOTTIME TAI gettimeofday ;;
	esac
}

has() { [ -x "$programs/$1" ]; }

# test_clocks NAME HOST PROGRAM...: tests that those programs that there are read clocks without a system call.
test_clocks() {
	local name=$1 host=$2 program
	shift 2
	for program; do
		if has "$program"; then
			# shellcheck disable=SC2046 # words
			check "$name: $program reads without a system call" \
				reads_without_calls "$host" "$programs/$program" "$reads" $(clocks_of "$program")
		fi
	done
}

# test_loader ISA HOST INFIX: tests the loader in the folder HOST, on programs of one ISA.
test_loader() {
	local isa=$1 host=$2 infix=$3
	local glibc=clock$infix-glibc musl=clock$infix-musl program
	test_clocks "loader $isa" "$host/loader" "$glibc" "$glibc-static" "$glibc-static-pie" "$musl" "$musl-static" "clock$infix-go"
	for program in torture "torture$infix-glibc" "torture$infix-musl-static"; do
		if { [ "$program" != torture ] || [ -z "$infix" ]; } && has "$program"; then
			check "loader $isa: $program sees no contradiction" exits_with 0 "$host/loader" "$programs/$program" -s 2 -m "$modes"
		fi
	done
}
