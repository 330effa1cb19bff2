package redistest

import (
	"net"
	"os"
	"strings"
	"testing"
)

// A server answers at its port and at its socket, with the given options.
func TestStart(t *testing.T) {
	t.Parallel()
	s := Start(t, "--maxmemory", "1mb", "--requirepass", "secret")
	if got, want := s.Do(t, "CONFIG", "GET", "maxmemory"), "maxmemory\n1048576"; got != want {
		t.Errorf("CONFIG GET maxmemory = %q, want %q", got, want)
	}
	if got := s.Do(t, "INCRBY", "number", "-7"); got != "-7" {
		t.Errorf("INCRBY = %q, want -7", got)
	}
	if got := s.Do(t, "GET", "nothing"); got != "" {
		t.Errorf("GET nothing = %q, want nothing", got)
	}
	if _, err := s.Try("HGET", "number", "field"); err == nil || !strings.HasPrefix(err.Error(), "WRONGTYPE") {
		t.Errorf("HGET of a number: %v, want WRONGTYPE", err)
	}
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if got := send(t, conn, "PING\r\n"); !strings.HasPrefix(got, "-NOAUTH") {
		t.Errorf("PING without a password: %q, want NOAUTH", got)
	}
}

// The end of a test ends its server and removes its directory.
func TestEnd(t *testing.T) {
	t.Parallel()
	var s *Server
	t.Run("", func(t *testing.T) {
		s = Start(t)
		s.Pause()
	})
	if s.Running() {
		t.Error("the server still runs")
	}
	if _, err := os.Stat(s.Dir()); !os.IsNotExist(err) {
		t.Errorf("the directory: %v, want none", err)
	}
}

// A paused server keeps its connections, and answers them after Resume.
func TestPause(t *testing.T) {
	t.Parallel()
	s := Start(t)
	s.Pause()
	if _, err := s.call(pollEvery, "PING"); err == nil {
		t.Error("a paused server answers")
	}
	conn, err := net.Dial("unix", s.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	s.Resume()
	if got := send(t, conn, "PING\r\n"); got != "+PONG\r\n" {
		t.Errorf("PING = %q after the pause", got)
	}
}

// A server restarts at the same port, with the data that its options saved: by default none.
func TestRestart(t *testing.T) {
	t.Parallel()
	keeps, forgets := Start(t, "--appendonly", "yes", "--appendfsync", "always"), Start(t)
	for s, want := range map[*Server]string{keeps: "value", forgets: ""} {
		s.Do(t, "SET", "key", "value")
		addr, before := s.Addr(), s.process.Load()
		s.Kill()
		if s.Running() {
			t.Error("it runs after Kill")
		}
		s.Restart()
		if s.Addr() != addr || s.process.Load() == before {
			t.Errorf("restarted at %s, before at %s, or not at all", s.Addr(), addr)
		}
		if got := s.Do(t, "GET", "key"); got != want {
			t.Errorf("GET = %q after a kill, want %q", got, want)
		}
	}
	keeps.Pause()
	keeps.Stop()
	if keeps.Running() {
		t.Error("it runs after Stop")
	}
	keeps.Restart()
	keeps.Restart()
}

// CutConnections closes connections, and a new one works.
func TestCutConnections(t *testing.T) {
	t.Parallel()
	s := Start(t)
	conn, err := net.Dial("tcp", s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	send(t, conn, "PING\r\n")
	if n := s.CutConnections(); n < 1 {
		t.Errorf("cut %d connections, want one at least", n)
	}
	if _, err := conn.Read(make([]byte, 1)); err == nil {
		t.Error("the connection has data, want its end")
	}
	s.Do(t, "PING")
}

// The CPU time of a server grows with its work.
func TestCPU(t *testing.T) {
	t.Parallel()
	s := Start(t)
	before := s.CPU()
	s.Do(t, "EVAL", "for i = 1, 1e7 do local _ = i % 7 end", "0")
	if after := s.CPU(); after <= before {
		t.Errorf("CPU time %v after work, %v before", after, before)
	}
}

// A replica follows its master.
func TestReplica(t *testing.T) {
	t.Parallel()
	master := Start(t)
	host, port, _ := strings.Cut(master.Addr(), ":")
	replica := Start(t, "--replicaof", host, port)
	master.AwaitReplicas(1)
	master.Do(t, "SET", "key", "value")
	await(t, "copy", []*Server{master, replica}, func() error { return want(replica, "value", "GET", "key") })
}
