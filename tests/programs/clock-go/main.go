// SPDX-License-Identifier: Apache-2.0 OR MIT

// clock COUNT [CLOCK...]: reads each clock COUNT times; prints its name and ns per read. Exits 3 if one went backwards.
package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

var start = time.Now()

// time.Now reads both clocks; each method uses one of them.
var clocks = map[string]func() int64{
	"REALTIME":  func() int64 { return time.Now().UnixNano() },
	"MONOTONIC": func() int64 { return int64(time.Since(start)) },
}

var all = []string{"REALTIME", "MONOTONIC"}

func readMany(name string, count int) {
	read := clocks[name]
	began := time.Now()
	last := read()
	for i := 0; i < count; i++ {
		now := read()
		if now < last {
			fmt.Fprintf(os.Stderr, "%s went backwards by %d ns\n", name, last-now)
			os.Exit(3)
		}
		last = now
	}
	fmt.Printf("%s %.1f\n", name, float64(time.Since(began).Nanoseconds())/float64(count))
}

func usage() {
	fmt.Fprintf(os.Stderr, "usage: clock COUNT [CLOCK...]\nclocks: %s\n", strings.Join(all, " "))
	os.Exit(2)
}

func main() {
	if len(os.Args) < 2 {
		usage()
	}
	count, err := strconv.Atoi(os.Args[1])
	if err != nil || count < 1 {
		usage()
	}
	names := os.Args[2:]
	if len(names) == 0 {
		names = all
	}
	for _, name := range names {
		if clocks[name] == nil {
			usage()
		}
	}
	for _, name := range names {
		readMany(name, count)
	}
}
