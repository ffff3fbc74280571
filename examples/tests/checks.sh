# SPDX-License-Identifier: Apache-2.0 OR MIT
# shellcheck shell=bash disable=SC2034,SC2154
#
# What is checked of the loader, and of what each libc binds by. Sourced by examples/test.
# Who sources it sets `work` (a folder), `programs` (the folder of the test programs), `runner` (an emulator, or
# nothing), `attempts`, and the function `clock_calls COMMAND...`, which prints how many system calls for clocks COMMAND makes.

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

# Does it up to ten times, until it succeeds. While a publisher gets no CPU its page ages, and reads rightly go to the kernel: on a busy
# machine that is slow, and no fault.
at_last() {
	local attempt
	for attempt in 1 2 3 4 5 6 7 8 9 10; do
		if "$@"; then return; fi
		echo "that was attempt $attempt"
	done
	return 1
}

# What the publisher itself reads to sample, where its own vDSO answers it, is no system call.
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

# A program that binds to the image makes below 50 (`makes_few_calls`). Some are missing where two processes write one log (qemu-user), more of
# them on a busy machine.
reads_by_calls() {
	local calls
	calls=$(clock_calls "$@") || return
	[ "${calls:-0}" -ge $((reads / 2)) ] || {
		echo "only $calls system calls for $reads reads"
		return 1
	}
}

# An emulator's system call is so slow, and on a busy machine so uneven, that a sample may miss by more than a call takes: where
# there are more attempts than one, what is wrong by more than that fails them all.
succeeds_once() {
	local attempt=0
	while [ "$attempt" -lt "$attempts" ]; do
		attempt=$((attempt + 1))
		if exits_with 0 "$@"; then return; fi
	done
	return 1
}

# Go reads these two only.
clocks_of() {
	case $1 in
	*-go) echo MONOTONIC REALTIME ;;
	*) echo MONOTONIC REALTIME BOOTTIME TAI gettimeofday ;;
	esac
}

has() { [ -x "$programs/$1" ]; }

# test_loader ISA HOST INFIX: the loader in the folder HOST, on programs of one ISA.
test_loader() {
	local isa=$1 host=$2 infix=$3
	local glibc=clock$infix-glibc musl=clock$infix-musl program
	for program in $glibc $glibc-static $glibc-static-pie $musl $musl-static clock$infix-go; do
		if has "$program"; then
			# shellcheck disable=SC2046 # words
			check "loader $isa: $program reads without a system call" \
				reads_without_calls "$host/loader" "$programs/$program" "$reads" $(clocks_of "$program")
		fi
	done
	# What each libc depends on, beside the image as it is. No libc here looks at the ABI tag (the build's check does), and
	# glibc looks at versions only after it has bound.
	for program in $glibc $glibc-static; do
		has "$program" || continue
		check "binding $isa: $program binds by DT_GNU_HASH alone" \
			reads_without_calls "$host/binding" hash "$programs/$program" "$reads" MONOTONIC
		check "binding $isa: $program falls back without DT_GNU_HASH's symbols" \
			reads_by_calls "$host/binding" gnu-hash "$programs/$program" "$reads" MONOTONIC
		check "binding $isa: $program falls back to DT_HASH where there is no other" \
			reads_without_calls "$host/binding" only-hash "$programs/$program" "$reads" MONOTONIC
		check "binding $isa: $program falls back without either" \
			reads_by_calls "$host/binding" hashes "$programs/$program" "$reads" MONOTONIC
	done
	for program in $musl $musl-static; do
		has "$program" || continue
		check "binding $isa: $program falls back without DT_HASH's symbols" \
			reads_by_calls "$host/binding" hash "$programs/$program" "$reads" MONOTONIC
		check "binding $isa: $program falls back without its version" \
			reads_by_calls "$host/binding" versions "$programs/$program" "$reads" MONOTONIC
	done
	for program in $glibc $musl; do
		has "$program" || continue
		check "binding $isa: $program does not look at the ABI tag" \
			reads_without_calls "$host/binding" note "$programs/$program" "$reads" MONOTONIC
	done
	for program in "$host"/reads*; do
		check "loader $isa: $(basename "$program") finds order and the ABI kept" succeeds_once "$host/loader" "$program"
	done
}
