package command

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// The command health succeeds for status 200 only. It prints no password of the URL and no control character of the answer.
func TestHealth(t *testing.T) {
	status := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		_, _ = w.Write([]byte("{\"status\":\"\x1b[2J\"}\n"))
	}))
	defer srv.Close()
	run := func(address string) (string, error) {
		var out bytes.Buffer
		cmd := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
		healthCommand(cmd)
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"http://ops:geheim@" + address})
		err := cmd.Execute()
		return out.String(), err
	}
	address := srv.Listener.Addr().String()
	if out, err := run(address); err != nil || out != "{\"status\":\"\uFFFD[2J\"}\n" {
		t.Errorf("status 200: got %q, %v", out, err)
	}
	for _, status = range []int{204, 401, 503} {
		out, err := run(address)
		if err == nil || out != "" || strings.ContainsAny(err.Error(), "\x1b\n") || strings.Contains(err.Error(), "geheim") {
			t.Errorf("status %d: got %q, %q", status, out, err)
		}
	}
	if _, err := run("127.0.0.1:" + freeport.Take(t)); err == nil || strings.Contains(err.Error(), "geheim") {
		t.Errorf("no server: got %v", err)
	}
}
