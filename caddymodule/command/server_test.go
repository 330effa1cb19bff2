package command

import (
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
)

// server is [caddytest.Server] with more methods.
type server struct{ *caddytest.Server }

// newServer returns a server that has not been given a config yet.
func newServer(t *testing.T) *server {
	t.Helper()
	return &server{caddytest.New(t, runningService)}
}
