// Reads the clock for a second, and writes a CPU profile of it to the named file.
package main

import (
	"os"
	"runtime/pprof"
	"time"
)

//go:noinline
func readClocks() {
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
	}
}

func main() {
	profile, err := os.Create(os.Args[1])
	if err != nil {
		panic(err)
	}
	if err := pprof.StartCPUProfile(profile); err != nil {
		panic(err)
	}
	readClocks()
	pprof.StopCPUProfile()
}
