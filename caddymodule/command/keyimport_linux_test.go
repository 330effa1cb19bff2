package command

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/limitkeeper/limitkeeper/caddymodule/caddytest"
	"github.com/limitkeeper/limitkeeper/core"
)

// SIGINT ends an import into a running server at once, and the server stops with the rows that it has written. The same command
// finishes the import. A failure means that an interrupted import goes on unseen, or cannot be finished.
func TestImportKeysInterrupted(t *testing.T) {
	s, a, file := newImport(t)
	run := func() (string, error) {
		return execute("import", importCommand, "--csv", file, "--account", "acme", "--address", s.Admin)
	}
	keys := func() int {
		_, n, err := s.Service().Keys(context.Background(), a.ID, core.KeyFilter{}, core.Page{Number: 1, Size: 1})
		s.Must(err)
		return n
	}
	const rows = 1000
	var text strings.Builder
	text.WriteString("key,user_name,plan\n")
	for i := range rows {
		fmt.Fprintf(&text, "acme_%08d,u%d,Pro\n", i, i/4)
	}

	// The command reads the file from pipes: from the first one whole to check it, and from the second one its first rows to
	// write them.
	ended := make(chan error, 1)
	s.Must(syscall.Mkfifo(file, 0o600))
	go func() {
		_, err := run()
		ended <- err
	}()
	open := func() *os.File {
		pipe, err := os.OpenFile(file, os.O_WRONLY, 0)
		s.Must(err)
		return pipe
	}
	send := func(pipe *os.File, text string) {
		_, err := pipe.WriteString(text)
		s.Must(err)
	}
	pipe := open()
	s.Must(os.Remove(file))
	s.Must(syscall.Mkfifo(file, 0o600))
	send(pipe, text.String())
	s.Must(pipe.Close())
	pipe = open()
	send(pipe, text.String()[:text.Len()/2])
	caddytest.Eventually(t, "the first rows are written", func() bool { return keys() > 0 })
	s.Must(syscall.Kill(os.Getpid(), syscall.SIGINT))
	if err := <-ended; err == nil || err.Error() != "interrupted: run the same command again" {
		t.Errorf("after SIGINT: %v", err)
	}
	_, _ = pipe.WriteString(text.String()[text.Len()/2:]) // the command reads no further
	s.Must(pipe.Close())
	s.WaitLog(`"uri":"/limitkeeper/import-keys`, 1)
	written := keys()
	if written == 0 || written >= rows {
		t.Errorf("%d keys are written, want some of %d", written, rows)
	}

	s.Must(os.Remove(file))
	s.Must(os.WriteFile(file, []byte(text.String()), 0o600))
	if out, err := run(); err != nil || !strings.Contains(out, fmt.Sprintf("already there  %d keys\n", written)) || keys() != rows {
		t.Errorf("again: %q, %v, and %d keys", out, err, keys())
	}
	if out, err := run(); err != nil || out != "Nothing to do: the account has the 1000 keys of the file.\n" {
		t.Errorf("the same file again: %q, %v", out, err)
	}
}
