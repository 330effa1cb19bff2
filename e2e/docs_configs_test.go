package e2e

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// documentedSecret is the key of the servers that run configs of the documents.
const documentedSecret = "lk_user_00000000000000000000000000000000"

// section returns the blocks of a section of a document, by their language.
func section(t *testing.T, file, heading string) map[string]string {
	t.Helper()
	text := readDocument(t, filepath.Join(root, file))
	_, text, ok := strings.Cut(text, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("%s has no heading %q", file, heading)
	}
	found := map[string]string{}
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		if found[m[1]] == "" { // the first one belongs to the heading
			found[m[1]] = m[2]
		}
	}
	return found
}

// startDocumented runs a Caddyfile of a document, whose proxy is this machine and whose upstream answers with the address of the
// client. The sites are on plain HTTP. It returns the site, with the port of the gateway.
func startDocumented(t *testing.T, code string) *site {
	t.Helper()
	s := newSite(t, "respond ok")
	code = regexp.MustCompile(`trusted_proxies static .*`).ReplaceAllString(code, "trusted_proxies static 127.0.0.1/32")
	code = regexp.MustCompile(`allow [\d./]+`).ReplaceAllString(code, "allow 127.0.0.1/32")
	code = regexp.MustCompile(`(?m)^(?:http://)?(\w+\.example\.com)(?::8080)? \{`).ReplaceAllString(code, "http://$1:"+s.port+" {")
	upstream := regexp.MustCompile(`reverse_proxy 127\.0\.0\.1:9000`)
	if !upstream.MatchString(code) { // options only
		code += "http://:" + s.port + " {\n\tlimitkeeper\n\treverse_proxy 127.0.0.1:9000\n}\n"
	}
	port := freeport.Take(t)
	code = upstream.ReplaceAllString(code, "reverse_proxy 127.0.0.1:"+port)
	code += "http://:" + port + " {\n\tbind 127.0.0.1\n\theader Access-Control-Allow-Origin *\n\trespond \"client {header.X-Client} customer {header.X-Customer-Id} plan {header.X-Plan} scopes {header.X-Scopes} reports {header.X-Reports} tier [{header.X-Tier}]\"\n}\n"
	code = strings.ReplaceAll(code, "\tlimitkeeper\n", "\trequest_header X-Client {client_ip}\n\tlimitkeeper\n")
	if !strings.HasPrefix(code, "{") {
		code = "{\n}\n" + code
	}
	options := "{\n\tadmin localhost:" + s.admin + "\n\tpersist_config off\n\tlimitkeeper {\n\t\tstore badger data\n\t\taccount default {\n\t\t\tkey {env.LIMITKEEPER_KEY}\n\t\t}\n\t}\n"
	writeFile(t, s.config, options+strings.TrimPrefix(code, "{\n"))

	p, err := launch(binary, s.dir, "documented", append(os.Environ(), "HOME="+s.dir, "LIMITKEEPER_KEY="+s.owner), "run", "--config", s.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if err := p.await("serving initial configuration"); err != nil {
		t.Fatal(err)
	}
	s.apply(t, fmt.Sprintf(`account: default
plans: [{name: p, max_requests: 1000, request_period: year}]
users: [{name: u, plan: p, keys: [{name: k, key_sha256: %x}]}]
`, sha256.Sum256([]byte(documentedSecret))))
	return s
}

// apply makes the account of a server equal to a file.
func (s *site) apply(t *testing.T, file string) {
	t.Helper()
	name := filepath.Join(s.dir, "apply.yaml")
	writeFile(t, name, file)
	if out, err := exec.Command(binary, "apply", name, "--address", "localhost:"+s.admin).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Behind each proxy of docs/operations.md, the address of the client is what the proxy says, and a client cannot spoof it. When
// this fails, histories have false addresses, and attackers evade the bounds on wrong passwords.
func TestDocumentedProxies(t *testing.T) {
	const client, spoofed = "203.0.113.7", "198.51.100.66"
	for _, tt := range []struct {
		heading string
		header  map[string]string // what the proxy sends
		first   string            // what the proxy sends in front of the request
	}{
		{"### AWS Application Load Balancer", map[string]string{"X-Forwarded-For": spoofed + ", " + client + ":4711"}, ""},
		{"### Cloudflare", map[string]string{"X-Forwarded-For": spoofed, "Cf-Connecting-Ip": client}, ""},
		{"### TCP load balancers", map[string]string{"X-Forwarded-For": spoofed}, "PROXY TCP4 " + client + " 127.0.0.1 4711 443\r\n"},
	} {
		t.Run(strings.TrimPrefix(tt.heading, "### "), func(t *testing.T) {
			t.Parallel()
			s := startDocumented(t, section(t, "docs/operations.md", tt.heading)["caddyfile"])
			conn, err := net.Dial("tcp", "127.0.0.1:"+s.port)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			r, err := http.NewRequest(http.MethodGet, "http://gateway.example.com/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("X-API-Key", documentedSecret)
			for name, v := range tt.header {
				r.Header.Set(name, v)
			}
			if _, err := conn.Write([]byte(tt.first)); err != nil {
				t.Fatal(err)
			}
			if err := r.Write(conn); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(conn), r)
			if err != nil {
				t.Fatal(err)
			}
			wantAnswer(t, resp, 200, "client "+client)
		})
	}
}

// Behind a real nginx with the config of docs/operations.md, customers have their own address, the REST API knows that they use
// HTTPS, and requests without a key are refused.
func TestDocumentedNginx(t *testing.T) {
	t.Parallel()
	configs := section(t, "docs/operations.md", "### nginx")
	s := startDocumented(t, configs["caddyfile"])
	path := nginxConfig(t, strings.ReplaceAll(configs["nginx"], "127.0.0.1:8080", "127.0.0.1:"+s.port))
	port := regexp.MustCompile(`listen 127\.0\.0\.1:(\d+)`).FindStringSubmatch(readDocument(t, path))[1]
	nginx := exec.Command(nginxBinary, "-e", "stderr", "-c", path)
	nginx.Stderr = os.Stderr
	if err := nginx.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = nginx.Process.Signal(syscall.SIGTERM)
		_ = nginx.Wait()
	})
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if conn, err := net.Dial("tcp", "127.0.0.1:"+port); err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nginx does not listen")
		}
	}
	send := func(host, path string, header map[string]string) *http.Response {
		t.Helper()
		r, err := http.NewRequest(http.MethodGet, "https://127.0.0.1:"+port+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = host
		for name, v := range header {
			r.Header.Set(name, v)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for range 3 {
		wantAnswer(t, send("gateway.example.com", "/x", map[string]string{"X-API-Key": documentedSecret, "X-Forwarded-For": "198.51.100.66"}),
			200, "client 127.0.0.1")
	}
	wantAnswer(t, send("gateway.example.com", "/x", nil), 401, "UNAUTHORIZED")
	wantAnswer(t, send("api.example.com", "/functions/v1/plans", map[string]string{"Authorization": "Bearer " + s.owner}), 200, `"count":1`)
	wantAnswer(t, send("api.example.com", "/dashboard/sign-in", nil), 200, "</html>")
}

// With the configs of docs/operations.md, only the user of the server can open the socket of the admin endpoint, the commands find
// the server there, its port on this machine has the metrics and nothing else, and no autosave.json is written.
func TestDocumentedAdmin(t *testing.T) {
	t.Parallel()
	s := newSite(t, "respond ok")
	socket := filepath.Join(s.dir, "admin.sock")
	text := readDocument(t, filepath.Join(root, "docs/operations.md"))
	_, text, _ = strings.Cut(text, "\n## The admin endpoint\n")
	options, sites := "\tlimitkeeper {\n\t\tstore badger data\n\t}\n", ""
	for _, m := range fence.FindAllStringSubmatch(text, 3) { // admin, metrics, persist_config
		if global, ok := strings.CutPrefix(m[2], "{\n"); ok {
			options += strings.TrimSuffix(global, "}\n")
		} else {
			sites += m[2]
		}
	}
	config := "{\n" + options + "}\n" + sites
	writeFile(t, s.config, strings.NewReplacer("/run/limitkeeper/admin.sock", socket, ":8081", ":"+s.port).Replace(config))
	p, err := launch(binary, s.dir, "admin", append(os.Environ(), "HOME="+s.dir, "XDG_CONFIG_HOME="+s.dir), "run", "--config", s.config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.kill)
	if err := p.await("serving initial configuration"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(socket)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("got a socket with mode %v (%v), want none for other users", info.Mode(), err)
	}
	for _, args := range [][]string{{"--address", "unix/" + socket}, {"--config", s.config}} {
		if out, err := exec.Command(binary, append([]string{"account", "list"}, args...)...).CombinedOutput(); err != nil {
			t.Errorf("%v: %v: %s", args, err, out)
		}
	}
	for path, want := range map[string]int{"/metrics": 200, "/config/": 404} {
		resp, err := client.Get(s.url + path)
		if err != nil {
			t.Fatal(err)
		}
		part := ""
		if want == 200 {
			part = "limitkeeper_eventlog_bytes"
		}
		wantAnswer(t, resp, want, part)
	}
	if _, err := os.Stat(filepath.Join(s.dir, "caddy", "autosave.json")); !os.IsNotExist(err) {
		t.Errorf("there is an autosave.json: %v", err)
	}
}

// With the config of docs/recipes.md, a preflight request needs no key and is not counted, all answers have one field
// Access-Control-Allow-Origin, and OPTIONS without the fields of a preflight request does not pass the gateway.
func TestDocumentedCORS(t *testing.T) {
	t.Parallel()
	s := startDocumented(t, section(t, "docs/recipes.md", "## Browsers: CORS")["caddyfile"])
	send := func(method string, header map[string]string) *http.Response {
		t.Helper()
		r, err := http.NewRequest(method, "http://127.0.0.1:"+s.port+"/x", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Host = "gateway.example.com"
		for name, v := range header {
			r.Header.Set(name, v)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if got := resp.Header.Values("Access-Control-Allow-Origin"); len(got) != 1 || got[0] != "https://app.example.com" {
			t.Errorf("%s %v: got Access-Control-Allow-Origin %q, want one", method, header, got)
		}
		return resp
	}
	const origin = "https://app.example.com"
	preflight := send("OPTIONS", map[string]string{"Origin": origin, "Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "x-api-key"})
	if got := preflight.Header.Get("Access-Control-Allow-Headers"); !strings.Contains(got, "X-API-Key") {
		t.Errorf("the preflight request allows the fields %q, want X-API-Key", got)
	}
	wantAnswer(t, preflight, 204, "")
	wantAnswer(t, send("OPTIONS", map[string]string{"Origin": origin}), 401, "UNAUTHORIZED")
	wantAnswer(t, send("GET", map[string]string{"Origin": origin}), 401, "UNAUTHORIZED")
	resp := send("GET", map[string]string{"Origin": origin, "X-API-Key": documentedSecret})
	if got := resp.Header.Get("X-RateLimit-Remaining"); got != "999" {
		t.Errorf("after one request with a key, %s of 1000 are left, want 999", got)
	}
	wantAnswer(t, resp, 200, "client")
}

// With the config of docs/recipes.md, the upstream learns the customer, and what a client says of itself does not reach it.
func TestDocumentedCaller(t *testing.T) {
	t.Parallel()
	s := startDocumented(t, section(t, "docs/recipes.md", "## Tell your service who calls")["caddyfile"])
	s.apply(t, "account: default\nplans: [{name: p, features: [reports]}]\n")
	r, err := http.NewRequest("GET", "http://127.0.0.1:"+s.port+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "gateway.example.com"
	r.Header = http.Header{"X-Api-Key": {documentedSecret}, "X-Tier": {"gold"}, "X-Customer-Id": {"7"}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	wantAnswer(t, resp, 200, "customer 1 plan p scopes * reports true tier []")
}

// With the prices of docs/recipes.md, a search counts 10 requests, a list 1, and all else what the document says. A failure
// means that customers pay another price, because the operator has copied the file.
func TestDocumentedPrices(t *testing.T) {
	t.Parallel()
	s := startDocumented(t, documentedGateway)
	s.apply(t, section(t, "docs/recipes.md", "## Prices by route")["yaml"])
	left := 1000
	for path, price := range map[string]int{"/v1/search?q=a": 10, "/v1/search/a": 10, "//v1/search": 10, "/V1/x/../SEARCH": 10, "/v1/list": 1, "/v1/other": 2, "/x/v1/search": 2} {
		resp := s.getDocumented(t, path)
		left -= price
		if got := resp.Header.Get("X-RateLimit-Remaining"); got != fmt.Sprint(left) {
			t.Errorf("%s: got %s requests left, want %d after the price %d", path, got, left, price)
		}
		wantAnswer(t, resp, 200, "")
	}
}

// documentedGateway is a gateway without options.
const documentedGateway = "gateway.example.com {\n\tlimitkeeper\n\treverse_proxy 127.0.0.1:9000\n}\n"

// With the file of docs/recipes.md, a limit of a meter that is named after a route limits this route alone.
func TestDocumentedLimitOfRoute(t *testing.T) {
	t.Parallel()
	s := startDocumented(t, documentedGateway)
	s.apply(t, section(t, "docs/recipes.md", "## Limits by route")["yaml"])
	s.apply(t, "account: default\nplans: [{name: p, limits: [{meter: reports, max: 1, period: year}]}]\n")
	wantAnswer(t, s.getDocumented(t, "/v1/reports/1"), 200, "")
	wantAnswer(t, s.getDocumented(t, "/v1/reports/2"), 429, `"reason":"quota"`)
	wantAnswer(t, s.getDocumented(t, "/v1/items"), 200, "")
}

// getDocumented sends a request with the documented key to the gateway of a documented config.
func (s *site) getDocumented(t *testing.T, path string) *http.Response {
	t.Helper()
	r, err := http.NewRequest("GET", "http://127.0.0.1:"+s.port+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "gateway.example.com"
	r.Header.Set("X-API-Key", documentedSecret)
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}
