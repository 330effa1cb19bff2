package redistest

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is one run of a server.
type process struct {
	*os.Process
	ended chan struct{} // closed when it has ended
}

// launch starts the program and waits until it answers PING: all data is loaded. It fails the test if the server does not start.
func (s *Server) launch() {
	s.tb.Helper()
	log, err := os.OpenFile(s.logPath(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		s.tb.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(s.binary, s.args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = s.dir, log, log
	endWithParent(cmd)
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // the thread lives as long as the process, see endWithParent
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(ended)
		}
	}()
	if err := <-started; err != nil {
		s.tb.Fatalf("start %s: %v", s.binary, err)
	}
	s.process.Store(&process{cmd.Process, ended})
	s.paused.Store(false)
	await(s.tb, "start of "+s.Addr(), []*Server{s}, func() error {
		if !s.Running() {
			s.tb.Fatalf("%s has ended at its start\n%s", s.Addr(), lastLines(s))
		}
		_, err := s.call(brief, "PING")
		return err
	})
}

// Running reports whether the process exists, paused or not.
func (s *Server) Running() bool {
	select {
	case <-s.process.Load().ended:
		return false
	default:
		return true
	}
}

// signal sends a signal to the process. It fails the test without process.
func (s *Server) signal(sig os.Signal) {
	s.tb.Helper()
	if err := s.process.Load().Signal(sig); err != nil {
		s.tb.Fatalf("signal %v to %s: %v\n%s", sig, s.Addr(), err, lastLines(s))
	}
}

// Pause stops the process with SIGSTOP, and waits until it does not answer. Its connections stay open. It fails
// the test if the process does not stop.
func (s *Server) Pause() {
	s.tb.Helper()
	s.signal(syscall.SIGSTOP)
	s.paused.Store(true)
	await(s.tb, "pause "+s.Addr(), []*Server{s}, func() error {
		if _, err := s.call(10*pollEvery, "PING"); err != nil {
			return nil
		}
		return errors.New("it answers")
	})
}

// Resume continues a paused process. It does nothing if the process is not paused, and fails the test
// without process.
func (s *Server) Resume() {
	s.tb.Helper()
	s.signal(syscall.SIGCONT)
	s.paused.Store(false)
}

// Kill ends the process with SIGKILL, which also ends a paused process, and waits for its end. Without process it does nothing.
func (s *Server) Kill() {
	p := s.process.Load()
	_ = p.Kill()
	<-p.ended
}

// Stop ends the process with SIGTERM: it saves its data as configured, and a master waits up to 10 seconds
// for replicas. Without process Stop does nothing. It fails the test after 20 seconds.
func (s *Server) Stop() {
	s.tb.Helper()
	p := s.process.Load()
	_ = p.Signal(syscall.SIGCONT) // fails if the process has ended
	_ = p.Signal(syscall.SIGTERM)
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
	s.launch()
}
