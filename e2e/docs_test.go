package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// fence matches a block of code in a document, with its language.
var fence = regexp.MustCompile("(?ms)^ *```(\\w*)\n(.*?)^ *```$")

// languages has what the tests do with the blocks of each language.
var languages = map[string]string{
	"sh":         "run",
	"console":    "shown: needs another system, root, or minutes",
	"caddyfile":  "validated",
	"json":       "validated if it is a config",
	"nginx":      "validated",
	"ini":        "validated, as a unit of systemd",
	"csv":        "used by the commands",
	"yaml":       "used by the commands",
	"go":         "compiled",
	"dockerfile": "shown",
	"text":       "shown", "diff": "shown", "regex": "shown", "sql": "shown", "haproxy": "shown", "http": "shown", "js": "shown",
}

// documents returns the paths of the documents that users read, those of the root first.
func documents(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil || len(files) < 12 {
		t.Fatalf("found %d documents: %v", len(files), err)
	}
	return append([]string{filepath.Join(root, "README.md"), filepath.Join(root, "xcaddy.md")}, files...)
}

// block is a block of code in a document.
type block struct {
	language, code string
	before         string // the text between the block before and this one
}

// blocks returns the blocks of code of a document.
func blocks(t *testing.T, file string) (found []block) {
	t.Helper()
	text := readDocument(t, file)
	end := 0
	for _, m := range fence.FindAllStringSubmatchIndex(text, -1) {
		b := block{language: text[m[2]:m[3]], code: text[m[4]:m[5]], before: text[end:m[0]]}
		if languages[b.language] == "" {
			t.Errorf("%s: a block has the unknown language %q:\n%s", filepath.Base(file), b.language, b.code)
		}
		found, end = append(found, b), m[1]
	}
	return found
}

// What the documents show to be copied is valid: whole Caddyfiles and snippets of a site, JSON configs, configs of nginx, and
// units of systemd. When this fails, a reader copies a config that does not start.
func TestDocumentsAreValid(t *testing.T) {
	checked := map[string]int{}
	for _, file := range documents(t) {
		units := t.TempDir()
		for _, b := range blocks(t, file) {
			if strings.Contains(b.code, "<") { // a synopsis
				continue
			}
			var problem string
			switch {
			case b.language == "caddyfile", b.language == "json" && strings.Contains(b.code, `"apps"`):
				problem = validConfig(t, b.language, b.code)
			case b.language == "nginx":
				problem = validNginx(t, b.code)
			case b.language == "ini":
				problem = validUnit(t, units, b)
			default:
				continue
			}
			checked[b.language]++
			if problem != "" {
				t.Errorf("%s: this is not valid:\n%s\n%s", filepath.Base(file), b.code, problem)
			}
		}
	}
	t.Logf("validated: %v", checked)
	if checked["caddyfile"] < 15 || checked["json"] < 1 || checked["nginx"] < 1 || checked["ini"] < 2 {
		t.Errorf("validated %v, want all configs of the documents", checked)
	}
}

// validConfig returns what the command validate says against a config, or "".
func validConfig(t *testing.T, language, code string) string {
	t.Helper()
	dir := t.TempDir()
	name := "Caddyfile"
	if language == "json" {
		name = "config.json"
		if !json.Valid([]byte(code)) {
			return "not JSON"
		}
	} else if !strings.HasPrefix(code, "{") && !strings.HasPrefix(code, "http") && !strings.Contains(code, ".com {") { // a snippet of a site
		code = ":8080 {\n" + code + "}\n"
	}
	path := filepath.Join(dir, name)
	writeFile(t, path, code)
	args := []string{"validate", "--config", path}
	if language != "json" {
		args = append(args, "--adapter", "caddyfile")
	}
	cmd := exec.Command(binary, args...)
	cmd.Env = append(os.Environ(), "HOME="+dir, "LIMITKEEPER_KEY=lk_0123456789abcdefghijklmnopqrs", "REDIS_PASSWORD=secret")
	if out, err := cmd.CombinedOutput(); err != nil {
		return string(out)
	}
	return ""
}

// nginxBinary is where Debian has nginx, outside of the PATH of most users.
const nginxBinary = "/usr/sbin/nginx"

// validNginx returns what nginx says against the sites of a config, or "".
func validNginx(t *testing.T, code string) string {
	t.Helper()
	path := nginxConfig(t, code)
	out, err := exec.Command(nginxBinary, "-t", "-e", "stderr", "-c", path).CombinedOutput()
	if err != nil || strings.Contains(string(out), "[warn]") {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return ""
}

// nginxConfig writes a config of nginx with some sites, which listen on free ports and have a certificate of the test.
// It returns the path of the file.
func nginxConfig(t *testing.T, sites string) string {
	t.Helper()
	dir := t.TempDir()
	sites = regexp.MustCompile(`/etc/nginx/tls/example\.com\.(crt|key)`).ReplaceAllString(sites, dir+"/tls.$1")
	sites = regexp.MustCompile(`listen 443\b`).ReplaceAllStringFunc(sites, func(string) string {
		return "listen 127.0.0.1:" + freeport.Take(t)
	})
	writeCertificate(t, dir+"/tls.crt", dir+"/tls.key")
	path := filepath.Join(dir, "nginx.conf")
	temporary := ""
	for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temporary += fmt.Sprintf("%s_temp_path %s/%[1]s;\n", name, dir)
	}
	writeFile(t, path, fmt.Sprintf("daemon off;\npid %[1]s/pid;\nevents {}\nhttp {\naccess_log off;\n%[2]s%[3]s}\n", dir, temporary, sites))
	return path
}

// writeCertificate writes a certificate and its key, made for this test.
func writeCertificate(t *testing.T, cert, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"*.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	writeFile(t, key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})))
}

// unitPath matches the path of a unit in the text before it.
var unitPath = regexp.MustCompile("`/etc/systemd/system/([^`]+)`")

// validUnit returns what systemd-analyze says against a unit, or "". The text before the unit has its path. All units
// of a document are in one directory.
func validUnit(t *testing.T, dir string, b block) string {
	t.Helper()
	name := unitPath.FindStringSubmatch(b.before)
	if name == nil {
		return "the text before does not name its path in /etc/systemd/system"
	}
	path := filepath.Join(dir, name[1])
	writeFile(t, path, regexp.MustCompile(`/usr/local/sbin/[\w-]+`).ReplaceAllString(b.code, binary)) // verify wants it to exist
	if out, err := exec.Command("systemd-analyze", "verify", path).CombinedOutput(); err != nil || len(out) > 0 {
		return fmt.Sprintf("%v: %s", err, out)
	}
	return ""
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// link matches a link of a document: its target, without the anchor, and the anchor.
var link = regexp.MustCompile(`\]\(([^)#:]*)(?:#([^)]*))?\)`)

// Each link from a document to a file or a heading of the project leads somewhere.
func TestDocumentLinks(t *testing.T) {
	checked := 0
	for _, file := range append(documents(t), filepath.Join(root, "CONTRIBUTING.md"), filepath.Join(root, "CHANGELOG.md")) {
		for _, m := range link.FindAllStringSubmatch(readDocument(t, file), -1) {
			target := file
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(file), m[1])
			}
			checked++
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %s: %v", filepath.Base(file), m[0], err)
			} else if m[2] != "" && !anchors(readDocument(t, target))[m[2]] {
				t.Errorf("%s: %s has no heading #%s", filepath.Base(file), filepath.Base(target), m[2])
			}
		}
	}
	if checked < 20 {
		t.Errorf("found %d links, want at least 20", checked)
	}
}

func readDocument(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anchors returns the anchors of the headings of a document, as GitHub makes them: lower
// case, letters, digits and hyphens only, a hyphen for each space.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		anchor := strings.ReplaceAll(strings.ToLower(m[1]), " ", "-")
		found[regexp.MustCompile(`[^a-z0-9_-]`).ReplaceAllString(anchor, "")] = true
	}
	return found
}
