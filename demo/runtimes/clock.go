// SPDX-License-Identifier: Apache-2.0 OR MIT

// For each line of input that names a call, clock prints the nanoseconds that it takes.
package main

import (
	"bufio"
	"fmt"
	"os"
	"time"
)

const reads = 5_000

// seen keeps the results, so that no call is optimised away.
var seen time.Duration

func read(call string) {
	begun := time.Now()
	switch call {
	case "time.Now()":
		for range reads {
			seen += time.Duration(time.Now().Nanosecond())
		}
	case "time.Since()":
		for range reads {
			seen += time.Since(begun)
		}
	default:
		panic(call)
	}
}

func main() {
	input := bufio.NewScanner(os.Stdin)
	for input.Scan() {
		begun := time.Now()
		read(input.Text())
		fmt.Println(float64(time.Since(begun).Nanoseconds()) / reads)
	}
}
