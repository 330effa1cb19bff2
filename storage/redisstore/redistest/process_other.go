//go:build !linux

package redistest

import "os/exec"

// startBound starts a command. Outside Linux, it outlives this process if that is killed.
func startBound(cmd *exec.Cmd) error { return cmd.Start() }

// isPaused returns nil: outside Linux, Pause does not wait until the process is stopped.
func isPaused(int) error { return nil }
