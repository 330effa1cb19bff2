package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// patience is how long anything is waited for.
const patience = 60 * time.Second

// process is a running binary whose output goes to files.
type process struct {
	cmd            *exec.Cmd
	stdout, stderr string // files
	done           chan struct{}
	code           int
}

// launch starts a binary. The output goes to name.out and name.err in dir.
func launch(binary, dir, name string, env []string, args ...string) (*process, error) {
	p := &process{
		cmd:    exec.Command(binary, args...),
		stdout: filepath.Join(dir, name+".out"), stderr: filepath.Join(dir, name+".err"),
		done: make(chan struct{}),
	}
	p.cmd.Dir, p.cmd.Env = dir, env
	out, err := os.Create(p.stdout)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	errs, err := os.Create(p.stderr)
	if err != nil {
		return nil, err
	}
	defer errs.Close()
	p.cmd.Stdout, p.cmd.Stderr = out, errs
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = p.cmd.Wait()
		p.code = p.cmd.ProcessState.ExitCode()
		close(p.done)
	}()
	return p, nil
}

// await waits until the output holds a text.
func (p *process) await(text string) error {
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if strings.Contains(p.output(), text) {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("ended with %d before it said %q:\n%s", p.code, text, p.output())
		default:
		}
	}
	return fmt.Errorf("never said %q:\n%s", text, p.output())
}

// output returns everything that was printed so far.
func (p *process) output() string {
	out, _ := os.ReadFile(p.stdout)
	errs, _ := os.ReadFile(p.stderr)
	return string(bytes.Join([][]byte{out, errs}, []byte("\n")))
}

// end sends a signal and returns the exit code.
func (p *process) end(sig syscall.Signal) (int, error) {
	_ = p.cmd.Process.Signal(sig)
	select {
	case <-p.done:
		return p.code, nil
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.done
		return -1, fmt.Errorf("did not end after %v:\n%s", sig, p.output())
	}
}

// kill ends the process if it still runs, for a cleanup.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}
