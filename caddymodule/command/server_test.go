package command

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule"
	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core/service"
)

// server is [caddytest.Server] with more methods.
type server struct{ *caddytest.Server }

// newServer returns a server that has not been given a config yet.
func newServer(t *testing.T) *server {
	t.Helper()
	return &server{caddytest.New(t, func() (*service.Service, error) {
		running, err := caddymodule.RunningStore()
		if err != nil {
			return nil, err
		}
		return running.Service, nil
	})}
}
