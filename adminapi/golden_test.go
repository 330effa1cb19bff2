package adminapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/service"
)

var update = flag.Bool("update", false, "write the answers of testdata/api anew")

// The files in testdata/api show every operation and how it fails, exactly as a
// client sees it. When this test fails, clients in the field see a difference.
//
// A file is a conversation with a fresh server. It has blocks that begin with ###:
// perhaps "@advance" and a duration, "@caps" and how many users, keys and plans an
// account may have, or "@role" and the role of the owner's key, a request with its headers and body, and from
// the line that begins with HTTP on the answer. Ids and values of keys are written
// as KEY1, PLAN1, HOLD1 and SECRET1 in the order in which they come up.
func TestGolden(t *testing.T) {
	files, _ := filepath.Glob("testdata/api/*.http")
	if len(files) == 0 {
		t.Fatal("no files in testdata/api")
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".http"), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			c := &conversation{api: newAPI(t), names: map[string]string{}, counts: map[string]int{}}
			got := c.run(string(text))
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if diff := cmp.Diff(string(text), got); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", file, diff)
			}
		})
	}
}

// The conversations leave out no operation of the contract.
func TestGoldenIsComplete(t *testing.T) {
	missing := operations(t)
	delete(missing, "GET /functions/v1/openapi.yaml") // its answer is a file of its own
	files, _ := filepath.Glob("testdata/api/*.http")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range requestLine.FindAllStringSubmatch(string(text), -1) {
			r := newAPI(t).newRequest(m[1], m[2], nil)
			template, _, _ := theContract(t).path(r.URL)
			delete(missing, m[1]+" "+template)
		}
	}
	for op := range missing {
		t.Errorf("testdata/api does not show %s", op)
	}
}

var (
	requestLine = regexp.MustCompile(`(?m)^(GET|HEAD|POST|PUT|PATCH|DELETE) (/\S*)$`)
	headerLine  = regexp.MustCompile(`^([A-Za-z-]+): ?(.*)$`)
	name        = regexp.MustCompile(`\b(KEY|PLAN|HOLD|SECRET|OKEY|ACCT|WH|WHSEC|EVT)[0-9]+\b`)
	changing    = regexp.MustCompile(`\b(key|plan|okey|acct|wh|evt)_[0-9A-Za-z]{20}\b|\bwhsec_[0-9A-Za-z+/]{32}|\bhold_[0-9]+_[0-9A-Za-z]{24}\b|\blk_user_[0-9A-Za-z]{32}\b`)
	hint        = regexp.MustCompile(`(lk_|lk_user_)….{4}"`)
)

// conversation is one file while it is played.
type conversation struct {
	*api
	names  map[string]string // from the name in the file to the id or secret, and back
	counts map[string]int
}

// run plays a file and returns it with the answers that came.
func (c *conversation) run(text string) string {
	var out []string
	for block := range strings.SplitSeq(strings.TrimSpace(text), "### ") {
		if block == "" {
			continue
		}
		asked, _, _ := strings.Cut("### "+strings.TrimSpace(block)+"\n", "\nHTTP ")
		asked = strings.TrimSpace(asked)
		out = append(out, asked+"\n\n"+c.play(asked)+"\n")
	}
	return strings.Join(out, "\n")
}

// play sends the request of a block and returns the answer as it is written.
func (c *conversation) play(block string) string {
	c.t.Helper()
	var method, path string
	var body []string
	var opts []option
	for line := range strings.SplitSeq(block, "\n") {
		if d, ok := strings.CutPrefix(line, "@advance "); ok {
			c.clock.Pass(c.duration(d))
		} else if n, ok := strings.CutPrefix(line, "@caps "); ok {
			c.caps(n)
		} else if role, ok := strings.CutPrefix(line, "@role "); ok {
			opts = append(opts, with("Authorization", "Bearer "+c.ownerKey(core.Role(role))))
		} else if m := requestLine.FindStringSubmatch(line); m != nil && method == "" {
			method, path = m[1], m[2]
		} else if m := headerLine.FindStringSubmatch(line); m != nil && method != "" && body == nil {
			opts = append(opts, with(m[1], m[2]))
		} else if method != "" {
			body = append(body, line)
		}
	}
	if method == "" {
		c.t.Fatalf("no request in the block\n%s", block)
	}
	return c.write(c.bad(method, c.expand(path), c.expand(strings.Join(body, "\n")), opts...))
}

func (c *conversation) caps(text string) {
	c.t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		c.t.Fatal(err)
	}
	c.svc.Tune(service.Tunables{MaxUsers: n, MaxKeys: n, MaxPlans: n})
}

func (c *conversation) duration(text string) time.Duration {
	c.t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		c.t.Fatal(err)
	}
	return d
}

// expand replaces the names in a request by ids and secrets.
func (c *conversation) expand(text string) string {
	return name.ReplaceAllStringFunc(text, func(n string) string {
		v, ok := c.names[n]
		if !ok {
			c.t.Fatalf("%s has not come up yet", n)
		}
		return v
	})
}

// write returns an answer with names instead of ids and secrets, which differ in each run.
func (c *conversation) write(r *result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "HTTP %d\n", r.status)
	for _, h := range slices.Sorted(maps.Keys(r.header)) {
		switch value := strings.Join(r.header[h], ", "); h {
		case "Date", "Content-Length":
		case "X-Request-Id":
			fmt.Fprintf(&b, "%s: …\n", h)
		default:
			fmt.Fprintf(&b, "%s: %s\n", h, value)
		}
	}
	var indented bytes.Buffer
	if kind := r.header.Get("Content-Type"); kind == "text/csv" || kind == "application/x-ndjson" {
		b.WriteString("\n" + string(r.body))
	} else if len(r.body) > 0 {
		if err := json.Indent(&indented, r.body, "", "  "); err != nil {
			c.t.Fatalf("%v\nthe answer is no JSON: %v", r.exchange, err)
		}
		b.WriteString("\n" + indented.String() + "\n")
	}
	return strings.TrimSpace(hint.ReplaceAllString(changing.ReplaceAllStringFunc(b.String(), c.nameOf), `${1}…wxyz"`))
}

// nameOf returns the name of an id or value of a key, a new one if need be.
func (c *conversation) nameOf(v string) string {
	if n, ok := c.names[v]; ok {
		return n
	}
	kind := strings.ToUpper(strings.SplitN(v, "_", 2)[0])
	if kind == "LK" {
		kind = "SECRET"
	}
	c.counts[kind]++
	n := fmt.Sprintf("%s%d", kind, c.counts[kind])
	c.names[v], c.names[n] = n, v
	return n
}
