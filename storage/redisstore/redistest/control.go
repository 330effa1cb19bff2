package redistest

import (
	"errors"
	"syscall"
	"time"
)

// Pause stops the process with SIGSTOP, and waits until it is stopped. Its connections stay open. It fails
// the test if the process does not stop.
func (s *Server) Pause() {
	s.tb.Helper()
	p := s.running()
	if err := p.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		s.tb.Fatalf("pause %s: %v", s.Addr(), err)
	}
	await(s.tb, "pause "+s.Addr(), []*Server{s}, func() error { return isPaused(p.cmd.Process.Pid) })
	p.paused.Store(true)
}

// Resume continues a paused process. It does nothing if the process is not paused, and fails the test
// without process.
func (s *Server) Resume() {
	s.tb.Helper()
	p := s.running()
	if err := p.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		s.tb.Fatalf("resume %s: %v", s.Addr(), err)
	}
	p.paused.Store(false)
}

// Kill ends the process with SIGKILL, and waits for its end. Without process it does nothing.
func (s *Server) Kill() { s.process.Load().kill() }

// Stop ends the process with SIGTERM: it saves its data as configured, and a master waits up to 10 seconds
// for replicas. Without process Stop does nothing. It fails the test after 20 seconds.
func (s *Server) Stop() {
	s.tb.Helper()
	p := s.process.Load()
	if p.hasEnded() {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGCONT) // fails if the process is about to end
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(limit):
		s.tb.Fatalf("%s does not stop\n%s", s.Addr(), lastLines(s))
	}
}

// Restart runs the server again with the same ports, directory and options, and waits until it answers. It
// stops a running process first. It fails the test if the server does not start.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	if err := s.launch(); err != nil {
		s.tb.Fatalf("restart %s: %v\n%s", s.Addr(), err, lastLines(s))
	}
}

// CPU returns the CPU time, user and system, of the process and its threads. It fails the test if the server does not answer.
func (s *Server) CPU() time.Duration {
	s.tb.Helper()
	info, err := s.info("INFO", "cpu")
	user, errUser := time.ParseDuration(info["used_cpu_user"] + "s")
	system, errSystem := time.ParseDuration(info["used_cpu_sys"] + "s")
	if err := errors.Join(err, errUser, errSystem); err != nil {
		s.tb.Fatalf("CPU time of %s: %v", s.Addr(), err)
	}
	return user + system
}
