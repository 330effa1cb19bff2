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
	ended chan struct{} // closed when it has ended and was waited for

	paused atomic.Bool
}

// launch runs the program and returns when it answers.
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
	s.mu.Lock()
	s.process = p
	s.mu.Unlock()
	return s.untilReady(p)
}

// untilReady waits for the answer to a ping, which comes when all data is loaded.
func (s *Server) untilReady(p *process) error {
	answer := errEnded
	err := poll(func() error {
		if p.hasEnded() {
			return nil
		}
		_, answer = s.call(brief, "PING")
		return answer
	})
	if err == nil && answer != nil { // it has ended without an answer
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

// kill ends the process, also when it is stopped. It is waited for: a process that
// was sent SIGKILL goes.
func (p *process) kill() {
	_ = p.cmd.Process.Kill()
	<-p.ended
}

// current returns the newest process.
func (s *Server) current() *process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

// running returns the process. That there is none fails the test.
func (s *Server) running() *process {
	s.tb.Helper()
	p := s.current()
	if p.hasEnded() {
		s.tb.Fatalf("%s does not run\n%s", s.Addr(), lastLines(s))
	}
	return p
}

// end is for the end of the test: what runs is killed, nobody needs its data.
func (s *Server) end() {
	if p := s.current(); p != nil {
		p.kill()
	}
}

// Running reports whether there is a process, be it paused or not.
func (s *Server) Running() bool { return !s.current().hasEnded() }

// canAnswer reports whether there is a process that is not paused.
func (s *Server) canAnswer() bool { return s.Running() && !s.current().paused.Load() }

// PID returns the number of the process. That there is none fails the test.
func (s *Server) PID() int {
	s.tb.Helper()
	return s.running().cmd.Process.Pid
}
