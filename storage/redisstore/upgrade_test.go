package redisstore_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/adminapi"
	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/storage/redisstore"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// TestEarlierFormats: a store of format 2, 3 or 4 opens with all its users, plans, keys, counts and histories: the REST API gives the
// answers of the version that wrote it, and perhaps new members. The store counts on, and remembers request ids. A failure means
// that an upgrade loses usage. testdata/formats has the stores: see make.sh there.
func TestEarlierFormats(t *testing.T) {
	files, err := filepath.Glob("testdata/formats/*.answers")
	if err != nil || len(files) != 3 {
		t.Fatalf("got %q, %v, want 3 stores", files, err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(file, ".answers")
		t.Run(filepath.Base(name), func(t *testing.T) {
			t.Parallel()
			server, old := redistest.Start(t), readAnswers(t, file)
			loadCommands(t, server, name+".aof.gz")
			for _, when := range []string{"upgraded", "opened again"} {
				s, err := redisstore.Open(t.Context(), redisstore.Options{Addresses: []string{server.Addr()}, Timeout: 5 * time.Second})
				if err != nil {
					t.Fatal(err)
				}
				api := old.serve(s)
				old.compare(t, api, when)
				if when == "opened again" {
					old.countsOn(t, api)
				}
				if err := s.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if got := strings.TrimSpace(server.Do(t, "GET", "limitkeeper:{registry}format")); got != "5" {
				t.Errorf("got the format %s, want 5", got)
			}
		})
	}
}

// answers are the answers of the REST API of an earlier version.
type answers struct {
	at    time.Time
	owner string
	keys  []string    // values
	gets  [][2]string // path and answer
}

func readAnswers(t *testing.T, file string) (a answers) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		word, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "time":
			if a.at, err = time.Parse(time.RFC3339, rest); err != nil {
				t.Fatal(err)
			}
		case "owner":
			a.owner = rest
		case "key":
			a.keys = append(a.keys, rest)
		case "get":
			path, answer, _ := strings.Cut(rest, " ")
			a.gets = append(a.gets, [2]string{path, answer})
		}
	}
	if len(a.keys) == 0 || len(a.gets) == 0 {
		t.Fatalf("%s has no answers", file)
	}
	return a
}

// serve returns the REST API over a store, at the time of the answers.
func (a *answers) serve(s core.Store) http.Handler {
	svc := core.NewService(s, core.Config{Clock: func() time.Time { return a.at }})
	return adminapi.New(adminapi.Config{Service: func() *core.Service { return svc }, Secure: func(*http.Request) bool { return true }})
}

func (a *answers) call(method, path, body string, api http.Handler) (v any, err error) {
	r := httptest.NewRequest(method, "https://localhost/functions/v1"+path, strings.NewReader(body))
	r.Header.Set("Authorization", "Bearer "+a.owner)
	w := httptest.NewRecorder()
	api.ServeHTTP(w, r)
	return v, json.Unmarshal(w.Body.Bytes(), &v)
}

// compare fails if an answer differs from the answer of the earlier version. It may have new members.
func (a *answers) compare(t *testing.T, api http.Handler, when string) {
	t.Helper()
	for _, get := range a.gets {
		var want any
		if err := json.Unmarshal([]byte(get[1]), &want); err != nil {
			t.Fatal(err)
		}
		got, err := a.call("GET", get[0], "", api)
		if err != nil {
			t.Fatal(err)
		}
		if diff := lacks("", want, got); diff != "" {
			t.Errorf("%s: GET %s: %s", when, get[0], diff)
		}
	}
}

// lacks returns the first place at which got differs from want or lacks a member of it, "" for none.
func lacks(place string, want, got any) string {
	switch want := want.(type) {
	case map[string]any:
		got, _ := got.(map[string]any)
		for name, v := range want {
			if diff := lacks(place+"."+name, v, got[name]); diff != "" {
				return diff
			}
		}
		return ""
	case []any:
		got, _ := got.([]any)
		if len(got) != len(want) {
			return fmt.Sprintf("%s: got %d elements, want %d", place, len(got), len(want))
		}
		for i, v := range want {
			if diff := lacks(fmt.Sprintf("%s[%d]", place, i), v, got[i]); diff != "" {
				return diff
			}
		}
		return ""
	}
	if want != got {
		return fmt.Sprintf("%s: got %v, want %v", place, got, want)
	}
	return ""
}

// countsOn fails unless an earlier request id is remembered, and a new request counts on top of the usage.
func (a *answers) countsOn(t *testing.T, api http.Handler) {
	t.Helper()
	used := func(more string) any {
		v, err := a.call("POST", "/validate", fmt.Sprintf(`{"api_key":%q,"endpoint":"/v1/more","method":"GET"%s}`, a.keys[2], more), api)
		if err != nil {
			t.Fatal(err)
		}
		details, _ := v.(map[string]any)["details"].(map[string]any)
		return details["current_usage"]
	}
	before, _ := used(`,"cost":0`).(float64)
	if first := used(`,"request_id":"r1"`); first != 8.0 {
		t.Errorf("a repeated request id: got the usage %v, want the first answer, 8", first)
	}
	if got := used(""); before < 8 || got != before+1 {
		t.Errorf("a new request: got the usage %v, want %v", got, before+1)
	}
}

// loadCommands sends the commands of an append-only file to a server, without the times at which names expire.
func loadCommands(t *testing.T, server *redistest.Server, file string) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	r, sent := bufio.NewReader(z), 0
	for ; ; sent++ {
		args, err := readCommand(r)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if args[0] != "PEXPIREAT" && args[0] != "SELECT" {
			server.Do(t, args...)
		}
	}
	if sent < 50 {
		t.Fatalf("%s has %d commands, want a store", file, sent)
	}
}

// readCommand reads a command as Redis writes it to an append-only file.
func readCommand(r *bufio.Reader) (args []string, err error) {
	number := func() (n int, err error) {
		line, err := r.ReadString('\n')
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(line[1:]))
	}
	n, err := number()
	for ; n > 0 && err == nil; n-- {
		var size int
		if size, err = number(); err == nil {
			arg := make([]byte, size+2)
			_, err = io.ReadFull(r, arg)
			args = append(args, string(bytes.TrimSuffix(arg, []byte("\r\n"))))
		}
	}
	return args, err
}

// A store of a later format is refused in one line that has both formats, and stays as it is.
func TestLaterFormat(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	server.Do(t, "SET", "limitkeeper:{registry}format", "6")
	s, err := redisstore.Open(t.Context(), redisstore.Options{Addresses: []string{server.Addr()}, Timeout: 5 * time.Second})
	if err == nil {
		_ = s.Close()
	}
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), `its format is "6", this version supports "5"`) {
		t.Errorf("got %v, want one line with both formats", err)
	}
	if got := strings.Fields(server.Do(t, "KEYS", "*")); len(got) != 1 || strings.TrimSpace(server.Do(t, "GET", got[0])) != "6" {
		t.Errorf("got the names %q, want the format only", got)
	}
}

// A node that runs while another version upgrades the data refuses every call within about a second, and says so once in the
// log and in its health. Otherwise it would misread the data of the later version.
func TestFormatChanges(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	o, log := logging(server.Addr())
	s := openFaulty(t, o)
	call := func() error {
		_, _, err := s.Accounts(t.Context(), core.Page{Number: 1, Size: 1})
		return err
	}
	for range 2 {
		server.Do(t, "SET", "limitkeeper:{registry}format", "6")
		until(t, "the refusal", func() bool { return errors.Is(call(), core.ErrUnavailable) })
		if err := s.Health(t.Context()); err == nil || !strings.Contains(err.Error(), "Another version of Limitkeeper has upgraded the data") {
			t.Errorf("got the health %v, want that another version has upgraded the data", err)
		}
		if st := s.Stats(); st.Lost {
			t.Error("the store says that Redis has lost data")
		}
		server.Do(t, "SET", "limitkeeper:{registry}format", "5")
		until(t, "the end of the refusal", func() bool { return call() == nil && s.Health(t.Context()) == nil })
	}
	if n := strings.Count(log.String(), "has upgraded the data"); n != 2 {
		t.Errorf("the log has %d lines about two upgrades, want 2:\n%s", n, log)
	}
}
