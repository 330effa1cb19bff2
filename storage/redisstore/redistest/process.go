package redistest

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"sync/atomic"
)

var (
	errPortTaken = errors.New("a port was taken by another process")
	errEnded     = errors.New("the process has ended")
)

// process is one run of a server.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed after Wait has returned

	paused atomic.Bool
}

// launch starts the program and waits until it answers.
func (s *Server) launch() error {
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	p := &process{cmd: exec.Command(s.binary, s.args...), ended: make(chan struct{})}
	p.cmd.Dir, p.cmd.Stdout, p.cmd.Stderr = s.dir, log, log
	if err := startBound(p.cmd); err != nil {
		return err
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.ended)
	}()
	s.process.Store(p)
	return s.untilReady(p)
}

// untilReady waits for the answer to PING, which succeeds when all data is loaded.
func (s *Server) untilReady(p *process) error {
	answer := errEnded
	err := poll(func() error {
		if p.hasEnded() {
			return nil
		}
		_, answer = s.call(brief, "PING")
		return answer
	})
	if err == nil && answer != nil { // the process ended before it answered
		if log, _ := os.ReadFile(s.logPath()); bytes.Contains(log, []byte("Address already in use")) {
			return errPortTaken
		}
		return errEnded
	}
	return err
}

func (p *process) hasEnded() bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// kill ends the process with SIGKILL, which also ends a stopped process, and waits for it.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// running returns the process, and fails the test without process.
func (s *Server) running() *process {
	s.tb.Helper()
	p := s.process.Load()
	if p.hasEnded() {
		s.tb.Fatalf("%s does not run\n%s", s.Addr(), lastLines(s))
	}
	return p
}

// end kills the process at the end of the test. Its data is not saved.
func (s *Server) end() {
	if p := s.process.Load(); p != nil {
		p.kill()
	}
}

// Running reports whether the process exists, paused or not.
func (s *Server) Running() bool { return !s.process.Load().hasEnded() }

// canAnswer reports whether the process exists and is not paused.
func (s *Server) canAnswer() bool { return s.Running() && !s.process.Load().paused.Load() }
