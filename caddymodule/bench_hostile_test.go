//go:build unix

package caddymodule

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// hostile are requests whose header or query is as large as a server allows. Each field is
// the text repeated up to the size.
var hostile = []struct{ name, field, repeat string }{
	{"sessions", "Cookie", "__Secure-limitkeeper=a; "},
	{"cookies", "Cookie", "a=b;"},
	{"copies", "Referer", "KEY%"},
	{"nearly", "Referer", "lk_user_%"},
	{"marks", "Referer", "lk_a%"},
	{"escapes", "Referer", "%25"},
	{"nested", "Referer", "25"},
	{"query", "?", "&"},
	{"escaped query", "?", "%61=%6c%6B_&"},
	{"query copies", "?", "api_key=KEY&"},
	{"fields", "X-Api-Key", "KEY\n"},
	{"ids", "Idempotency-Key", "\n"},
	{"keys", "X-Api-Key", "lk_user_x\n"},
	{"escaped copies", "Referer", "%6c%6B_user_"},
}

// BenchmarkGatewayHostile measures the CPU time of one request of 19 KB and of 1 MB: the time must be
// linear in the size. cpu-µs/log is the time of an access log entry.
func BenchmarkGatewayHostile(b *testing.B) {
	g, secret := benchGateway(b)
	g.Keys = []KeySource{{In: inHeader, Name: "X-Api-Key"}, {In: inBearer}, {In: inQuery, Name: "api_key"}, {In: inCookie, Name: "key"}}
	g.RequestID = &RequestIDSource{In: inHeader, Name: "Idempotency-Key"}
	upstream := caddyhttp.HandlerFunc(func(http.ResponseWriter, *http.Request) error { return nil })
	logSources.add(g.Keys)
	logs := new(LogEncoder)
	if err := logs.Provision(caddy.Context{Context: b.Context()}); err != nil {
		b.Fatal(err)
	}
	for _, h := range hostile {
		for name, size := range map[string]int{"19KB": 19_000, "1MB": 1_000_000} {
			b.Run(h.name+"/"+name, func(b *testing.B) {
				var handling, logging time.Duration
				for b.Loop() {
					r := hostileRequest(h.field, strings.ReplaceAll(h.repeat, "KEY", secret), secret, size)
					w := &answering{header: http.Header{}}
					logged := *r
					logged.Header = r.Header.Clone()
					r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), w, &caddyhttp.Server{})
					at := cpuTime()
					_ = g.ServeHTTP(w, r, upstream)
					handling, at = handling+cpuTime()-at, cpuTime()
					line, err := logs.EncodeEntry(zapcore.Entry{}, []zapcore.Field{zap.Object("request", caddyhttp.LoggableHTTPRequest{Request: &logged})})
					if err != nil {
						b.Fatal(err)
					}
					line.Free()
					logging += cpuTime() - at
				}
				b.ReportMetric(handling.Seconds()*1e6/float64(b.N), "cpu-µs/request")
				b.ReportMetric(logging.Seconds()*1e6/float64(b.N), "cpu-µs/log")
			})
		}
	}
}

// hostileRequest returns a request with the key in its usual place, and the text repeated in
// the lines of a field, or in the query.
func hostileRequest(field, text, secret string, size int) *http.Request {
	text = strings.Repeat(text, size/len(text))
	r, _ := http.NewRequest(http.MethodGet, "http://localhost/p", nil)
	r.RequestURI, r.RemoteAddr = "/p", "203.0.113.9:4711"
	r.Header["X-Api-Key"] = []string{secret}
	if field == "?" {
		setQuery(r, text)
	} else {
		r.Header[field] = strings.Split(text, "\n")
	}
	return r
}

// BenchmarkStrip measures the removal of the key from a typical request of a program and of a browser.
func BenchmarkStrip(b *testing.B) {
	const secret = "lk_user_0123456789abcdefghijABCDEFGHIJ01"
	program := http.Header{"User-Agent": {"bench"}}
	browser := http.Header{"Accept": {"application/json, text/plain, */*"}, "Accept-Encoding": {"gzip, deflate, br, zstd"}, "Accept-Language": {"en-GB,en;q=0.9,de;q=0.8"},
		"User-Agent": {"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"}, "Origin": {"https://app.example.com"},
		"Referer": {"https://app.example.com/search?q=a%20b"}, "Sec-Fetch-Mode": {"cors"}, "Sec-Fetch-Site": {"same-site"}, "Sec-Fetch-Dest": {"empty"}, "Cookie": {"theme=dark; session=0123456789abcdef0123456789abcdef"}}
	for name, header := range map[string]http.Header{"program": program, "browser": browser} {
		b.Run(name, func(b *testing.B) {
			r, _ := http.NewRequest(http.MethodGet, "http://localhost/v1/items/42?page=2", nil)
			r = caddyhttp.PrepareRequest(r, caddy.NewReplacer(), nil, &caddyhttp.Server{})
			r.Header = header.Clone()
			g := &Gateway{Keys: []KeySource{{In: inHeader, Name: "X-Api-Key"}, {In: inBearer}}}
			key := []string{secret}
			before := cpuTime()
			for b.Loop() {
				r.Header["X-Api-Key"] = key
				g.strip(r, nil, secret, &requestState{})
			}
			b.ReportMetric(float64(cpuTime()-before)/float64(b.N), "cpu-ns/op")
		})
	}
}
