package redistest

import (
	"errors"
	"fmt"
	"strings"
)

// agreed returns the master that all reachable sentinels name.
func (n *Sentinel) agreed() (*Server, error) {
	var master *Server
	for _, s := range n.sentinels {
		if !s.canAnswer() {
			continue
		}
		named, err := n.masterBy(s)
		if err != nil {
			return nil, err
		}
		if master != nil && named != master {
			return nil, fmt.Errorf("%s names %s for the master, others %s", s.Addr(), named.Addr(), master.Addr())
		}
		master = named
	}
	if master == nil {
		return nil, errors.New("no sentinel can answer")
	}
	return master, nil
}

// isWhole returns the first condition of Await that does not hold.
func (n *Sentinel) isWhole() error {
	for _, s := range n.sentinels {
		if err := s.knows(sentinels-1, len(n.servers)-1); err != nil {
			return err
		}
	}
	master, err := n.agreed()
	if err != nil {
		return err
	}
	for _, s := range n.servers {
		if s != master && s.isMaster() == nil {
			return fmt.Errorf("%s is a master too", s.Addr())
		}
		if err := s.isLinked(); err != nil {
			return err
		}
	}
	return master.isMaster()
}

// knows returns an error unless a sentinel knows the given numbers of live sentinels and replicas.
func (s *Server) knows(others, replicas int) error {
	for command, want := range map[string]int{"SENTINELS": others, "REPLICAS": replicas} {
		reply, err := s.call(brief, "SENTINEL", command, masterName)
		if err != nil {
			return err
		}
		rows, _ := reply.([]any)
		live := 0
		for _, row := range rows {
			if state := text(row); !strings.Contains(state, "s_down") && !strings.Contains(state, "disconnected") {
				live++
			}
		}
		if live != want {
			return fmt.Errorf("%s knows %d of %d %s", s.Addr(), live, want, strings.ToLower(command))
		}
	}
	return nil
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
