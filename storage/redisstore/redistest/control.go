package redistest

import (
	"syscall"
	"time"
)

// Pause stops the process with SIGSTOP and returns when it stands still: its connections
// stay open and nothing is answered. That it does not stop fails the test.
func (s *Server) Pause() {
	s.tb.Helper()
	p := s.running()
	if err := pause(p.cmd.Process); err != nil {
		s.tb.Fatalf("pause %s: %v", s.Addr(), err)
	}
	await(s.tb, "pause "+s.Addr(), []*Server{s}, func() error { return isPaused(p.cmd.Process.Pid) })
	p.paused.Store(true)
}

// Resume lets a paused process go on. It does nothing to one that is not paused; that
// there is none fails the test.
func (s *Server) Resume() {
	s.tb.Helper()
	p := s.running()
	if err := resume(p.cmd.Process); err != nil {
		s.tb.Fatalf("resume %s: %v", s.Addr(), err)
	}
	p.paused.Store(false)
}

// Kill ends the process with SIGKILL, paused or not, and returns when it is gone. It does
// nothing when there is none.
func (s *Server) Kill() { s.current().kill() }

// Stop ends the process gracefully, with SIGTERM: it saves what it is configured to save,
// and a master waits up to 10 seconds for replicas that lag. It does nothing when there
// is no process. One that does not end within 20 seconds fails the test.
func (s *Server) Stop() {
	s.tb.Helper()
	p := s.current()
	if p.hasEnded() {
		return
	}
	_ = resume(p.cmd.Process) // errors are for one that ends by itself just now
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
	case <-time.After(limit):
		s.tb.Fatalf("%s does not stop\n%s", s.Addr(), lastLines(s))
	}
}

// Restart runs the server again, on the same ports, in the same directory and with the
// same options, and returns when it answers. One that still runs is stopped before. That
// it does not start fails the test.
func (s *Server) Restart() {
	s.tb.Helper()
	s.Stop()
	if err := s.launch(); err != nil {
		s.tb.Fatalf("restart %s: %v\n%s", s.Addr(), err, lastLines(s))
	}
}

// CPU returns the CPU time, of user and system, that the process and its threads have
// used since it began, in steps of 10 milliseconds. That there is none fails the test.
func (s *Server) CPU() time.Duration {
	s.tb.Helper()
	used, err := s.cpu(s.PID())
	if err != nil {
		s.tb.Fatalf("CPU time of %s: %v", s.Addr(), err)
	}
	return used
}
