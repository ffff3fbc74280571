// SPDX-License-Identifier: Apache-2.0 OR MIT

// clock-server PORT: answers every request with the nanoseconds since 1970, and how long the answer took to make.
package main

import (
	"fmt"
	"net/http"
	"os"
	"time"
)

func answer(w http.ResponseWriter, _ *http.Request) {
	began := time.Now()
	fmt.Fprintf(w, "%d %d\n", time.Now().UnixNano(), time.Since(began).Nanoseconds())
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: clock-server PORT")
		os.Exit(2)
	}
	fmt.Fprintln(os.Stderr, http.ListenAndServe("127.0.0.1:"+os.Args[1], http.HandlerFunc(answer)))
	os.Exit(1)
}
