package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// profile writes CPU profiles of the subjects that can be profiled, under load.
func (l *lab) profile(ctx context.Context, subjects []*subject, connections int) error {
	if err := os.MkdirAll(l.o.profile, 0o755); err != nil {
		return err
	}
	for _, s := range subjects {
		if s.debug == "" {
			continue
		}
		if err := l.warm(ctx, s, connections); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		name := strings.NewReplacer(" ", "-", ",", "").Replace(strings.ToLower(s.name))
		path := filepath.Join(l.o.profile, fmt.Sprintf("%s-%d.pprof", name, connections))
		if err := l.profileOne(ctx, s, connections, path); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		l.say("%s with %d connections: go tool pprof -top %s", s.name, connections, path)
	}
	return nil
}

// profileOne loads a subject while its profile is taken.
func (l *lab) profileOne(ctx context.Context, s *subject, connections int, path string) error {
	loaded := make(chan error, 1)
	go func() {
		_, err := s.run(ctx, load{connections: connections, duration: l.o.duration + time.Second})
		loaded <- err
	}()
	err := fetchProfile(ctx, s.debug, l.o.duration, path)
	return errors.Join(err, <-loaded)
}

// fetchProfile asks Caddy's admin endpoint for a profile.
func fetchProfile(ctx context.Context, admin string, d time.Duration, path string) (err error) {
	url := fmt.Sprintf("http://%s/debug/pprof/profile?seconds=%d", admin, int(d.Seconds()))
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", url, answer.Status)
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, answer.Body)
	return errors.Join(err, f.Close())
}
