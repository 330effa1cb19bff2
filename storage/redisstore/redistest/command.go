package redistest

import (
	"fmt"
	"strings"
	"testing"
)

// Do runs one command and returns its reply as redis-cli prints it into a pipe: a number
// in decimal, nothing for nil, an array with one element a line. A command that fails or
// has no reply within 20 seconds fails the test.
func (s *Server) Do(tb testing.TB, args ...string) string {
	tb.Helper()
	reply, err := s.Try(args...)
	if err != nil {
		tb.Fatalf("%s: %s: %v\n%s", s.Addr(), strings.Join(args, " "), err, lastLines(s))
	}
	return reply
}

// Try runs one command as Do does and returns what went wrong: an error reply, no
// connection, or no reply within 20 seconds.
func (s *Server) Try(args ...string) (string, error) {
	reply, err := s.call(limit, args...)
	return text(reply), err
}

// text returns a reply as text.
func text(reply any) string {
	switch v := reply.(type) {
	case nil:
		return ""
	case []any:
		lines := make([]string, len(v))
		for i, element := range v {
			lines[i] = text(element)
		}
		return strings.Join(lines, "\n")
	default:
		return fmt.Sprint(v)
	}
}

// CutConnections has the server close every connection of clients, those of replicas
// and of the cluster's bus aside, and returns how many there were. Clients can connect
// anew at once. A server that does not answer fails the test.
func (s *Server) CutConnections() int {
	s.tb.Helper()
	cut := 0
	for _, kind := range []string{"normal", "pubsub"} {
		reply, err := s.call(limit, "CLIENT", "KILL", "TYPE", kind)
		if err != nil {
			s.tb.Fatalf("%s: CLIENT KILL: %v\n%s", s.Addr(), err, lastLines(s))
		}
		n, _ := reply.(int64)
		cut += int(n)
	}
	return cut
}

// AwaitReplicas waits until n replicas of the server are online and have acknowledged
// data: a replica that is still loading is online, too. It fails the test after 20
// seconds.
func (s *Server) AwaitReplicas(n int) {
	s.tb.Helper()
	await(s.tb, fmt.Sprintf("%d replicas of %s", n, s.Addr()), []*Server{s}, func() error {
		if _, err := s.call(brief, "PUBLISH", "awaiting", "replicas"); err != nil { // something to acknowledge
			return err
		}
		info, err := s.info("INFO", "replication")
		if err != nil {
			return err
		}
		online := 0
		for name, value := range info {
			loaded := strings.Contains(value, "state=online") && !strings.Contains(value, ",offset=0,")
			if strings.HasPrefix(name, "slave") && loaded {
				online++
			}
		}
		if online != n {
			return fmt.Errorf("%d replicas", online)
		}
		return nil
	})
}

// info runs a command that replies with lines of name:value.
func (s *Server) info(args ...string) (map[string]string, error) {
	reply, err := s.call(brief, args...)
	if err != nil {
		return nil, err
	}
	info := map[string]string{}
	for line := range strings.Lines(text(reply)) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			info[name] = value
		}
	}
	return info, nil
}

// isLinked returns an error when the server is a replica without a link to its master.
func (s *Server) isLinked() error {
	info, err := s.info("INFO", "replication")
	if err != nil {
		return err
	}
	if info["role"] == "slave" && info["master_link_status"] != "up" {
		return fmt.Errorf("the link of %s to its master is %s", s.Addr(), info["master_link_status"])
	}
	return nil
}
