// SPDX-License-Identifier: Apache-2.0 OR MIT

// spawn CMD [ARGS]: starts CMD with os/exec, then becomes it.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

func main() {
	child := exec.Command(os.Args[1], os.Args[2:]...)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	if err := child.Run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	path, err := exec.LookPath(os.Args[1])
	if err == nil {
		err = syscall.Exec(path, os.Args[1:], os.Environ())
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(126)
}
