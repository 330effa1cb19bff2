package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"
)

// stopTimeout is the time between SIGTERM and SIGKILL.
const stopTimeout = 10 * time.Second

// process is a running program.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string        // the file with its output
	ended chan struct{} // closed when the program has ended
	err   error         // from Wait
}

// start starts a program in dir. Its output goes to a file there. The program has a
// process group of its own, so that Ctrl-C does not end it before stop does.
func start(dir, name string, env []string, argv ...string) (*process, error) {
	p := &process{name: name, log: filepath.Join(dir, name+".log"), ended: make(chan struct{})}
	out, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir, p.cmd.Env = dir, append(os.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// stop ends the process and waits for its end. Further calls do nothing.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(stopTimeout):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// ready calls ok until ok returns nil: the process serves. After 30 s, or when the process ends, it returns an error with the
// last lines of the process's output.
func (p *process) ready(ctx context.Context, ok func() error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := ok()
		if err == nil {
			return nil
		}
		select {
		case <-p.ended:
			err = fmt.Errorf("it ended: %w", p.err)
		case <-ctx.Done():
			err = fmt.Errorf("it does not serve: %w", err)
		case <-time.After(20 * time.Millisecond):
			continue
		}
		text, _ := os.ReadFile(p.log)
		lines := bytes.Split(bytes.TrimSpace(text), []byte("\n"))
		return fmt.Errorf("%s: %w\n%s", p.name, err, bytes.Join(lines[max(0, len(lines)-8):], []byte("\n")))
	}
}

// accepts returns a function that fails until a server listens on an address.
func accepts(network, addr string) func() error {
	return func() error {
		c, err := net.DialTimeout(network, addr, time.Second)
		if err != nil {
			return err
		}
		return c.Close()
	}
}

// freeAddr returns a free TCP address on loopback.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// freeAddrs returns n different free TCP addresses on loopback.
func freeAddrs(n int) (addrs []string, err error) {
	for len(addrs) < n {
		addr, err := freeAddr()
		if err != nil {
			return nil, err
		}
		if !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// port returns the port of an address.
func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr)
	return p
}

// output runs a command and returns its standard output. An error has both outputs.
func output(ctx context.Context, env []string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopTimeout
	cmd.Env = append(os.Environ(), env...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", filepath.Base(argv[0]), err, bytes.TrimSpace(append(errs.Bytes(), out.Bytes()...)))
	}
	return out.String(), nil
}
