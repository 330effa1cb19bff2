package redistest

import (
	"errors"
	"fmt"
	"testing"
)

// firstNamed returns the server that the first of the running nodes names. It fails the test if no node answers.
func firstNamed(nodes []*Server, master func(by *Server) (*Server, error)) *Server {
	tb := nodes[0].tb
	tb.Helper()
	var problems error
	for _, s := range nodes {
		if !s.canAnswer() {
			continue
		}
		named, err := master(s)
		if err == nil {
			return named
		}
		problems = errors.Join(problems, fmt.Errorf("%s: %w", s.Addr(), err))
	}
	tb.Fatalf("find the master: %v\n%s", problems, lastLines(nodes...))
	return nil
}

// agreed returns the server that all running nodes name.
func agreed(nodes []*Server, master func(by *Server) (*Server, error)) (all *Server, err error) {
	for _, s := range nodes {
		if !s.canAnswer() {
			continue
		}
		named, err := master(s)
		if err != nil {
			return nil, err
		}
		if all != nil && named != all {
			return nil, fmt.Errorf("%s names %s for the master, others %s", s.Addr(), named.Addr(), all.Addr())
		}
		all = named
	}
	if all == nil {
		return nil, errors.New("no node can answer")
	}
	return all, nil
}

// awaitOther waits until master returns another server than from.
func awaitOther(tb testing.TB, from *Server, logs []*Server, master func() (*Server, error)) (other *Server) {
	tb.Helper()
	await(tb, "failover of "+from.Addr(), logs, func() (err error) {
		if other, err = master(); err == nil && other == from {
			err = errors.New("it is still the master")
		}
		return err
	})
	return other
}

// isMaster returns an error unless the server has the role of a master.
func (s *Server) isMaster() error {
	info, err := s.info("INFO", "replication")
	if err != nil {
		return err
	}
	if role := info["role"]; role != "master" {
		return fmt.Errorf("%s is a %s", s.Addr(), role)
	}
	return nil
}

// isLinked returns an error if the server is a replica without link to its master.
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

func addrs(servers []*Server) []string {
	list := make([]string, len(servers))
	for i, s := range servers {
		list[i] = s.Addr()
	}
	return list
}
