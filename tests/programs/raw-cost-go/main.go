// SPDX-License-Identifier: Apache-2.0 OR MIT

// Measures what a clock read by syscall.RawSyscall costs, as tests/programs/raw-cost.c does: the call is `RawSyscall`, or `Now` for
// time.Now.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
	"unsafe"
)

const (
	turns     = 20
	calls     = 10000
	monotonic = 1
)

func raw() {
	var now syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, monotonic, uintptr(unsafe.Pointer(&now)), 0)
}

var last time.Time

func now() { last = time.Now() }

func cost(call func()) float64 {
	least := 1e18
	for turn := 0; turn < turns; turn++ {
		begun := time.Now()
		for i := 0; i < calls; i++ {
			call()
		}
		least = min(least, float64(time.Since(begun).Nanoseconds())/calls)
	}
	return least
}

func main() {
	known := map[string]func(){"RawSyscall": raw, "Now": now}
	if len(os.Args) == 4 && os.Args[1] == "count" {
		lines := bufio.NewScanner(os.Stdin)
		times, _ := strconv.Atoi(os.Args[3])
		lines.Scan()
		for ; times > 0; times-- {
			known[os.Args[2]]()
		}
		fmt.Println("done")
		lines.Scan()
		return
	}
	for _, name := range os.Args[2:] {
		fmt.Printf("%s %.1f\n", name, cost(known[name]))
	}
}
