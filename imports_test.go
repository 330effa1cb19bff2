package limitkeeper_test

import (
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/limitkeeper/limitkeeper"

// arrows holds the house together: what a package, its tests aside, must
// never import, and why. A path that ends in /... means everything below it.
var arrows = []struct {
	pkg       string
	forbidden []string
	why       string
}{
	{"core", []string{"net/http", "log", "log/slog", "go.uber.org/zap/...", "github.com/caddyserver/...",
		"github.com/dgraph-io/...", "github.com/redis/...",
		module + "/adminapi/...", module + "/bench/...", module + "/caddymodule/...", module + "/storage/..."},
		"core decides: no HTTP, no database, no Caddy, no logger, and of this module only internal/"},
	{"internal/...", []string{module + "/..."}, "they know nothing of accounts, keys and counters"},
	{"storage/...", []string{"net/http", "github.com/caddyserver/...", module + "/adminapi/...", module + "/caddymodule/..."},
		"stores persist: they know core and their database"},
	{"storage/record", []string{module + "/storage/..."}, "a record is of core's resources"},
	{"storage/memstore", []string{module + "/storage/..."}, "a store knows no other store"},
	{"storage/badgerstore", []string{module + "/storage/memstore", module + "/storage/redisstore/...", module + "/storage/storetest",
		module + "/storage/migrate"}, "a store knows no other store"},
	{"storage/badgerstore/internal/eventlog", []string{module + "/...", "github.com/dgraph-io/...", "log/slog"},
		"the log knows bytes and positions: neither Badger nor core"},
	{"storage/badgerstore/internal/rankset", []string{module + "/...", "github.com/dgraph-io/...", "log/slog"},
		"a set knows keys and records: neither Badger nor core"},
	{"storage/badgerstore/internal/reserve", []string{module + "/storage/...", "net/http"}, "the reserve knows the disk, and nothing of what is stored"},
	{"storage/badgerstore/internal/table", []string{module + "/..."}, "it knows Badger, and nothing of what is stored"},
	{"storage/redisstore", []string{module + "/storage/memstore", module + "/storage/badgerstore", module + "/storage/storetest",
		module + "/storage/migrate", module + "/storage/redisstore/..."}, "a store knows no other store"},
	{"storage/redisstore/redistest", []string{module + "/...", "github.com/redis/..."}, "what tests a store does not use it"},
	{"storage/migrate", []string{module + "/storage/..."}, "it moves between any stores"},
	{"storage/storetest", []string{module + "/storage/badgerstore", module + "/storage/redisstore/...", "github.com/dgraph-io/...", "github.com/redis/..."},
		"the conformance suite knows the contract only"},
	{"adminapi/...", []string{"github.com/caddyserver/...", "go.uber.org/zap/...", module + "/storage/...", module + "/caddymodule/..."},
		"adminapi translates HTTP to core, without Caddy and over any store"},
	{"adminapi", []string{module + "/adminapi/dashboard"}, "the API and the dashboard stand beside each other, over core"},
	{"adminapi/dashboard", []string{module + "/adminapi"}, "the API and the dashboard stand beside each other, over core"},
	{"caddymodule/...", []string{module + "/storage/memstore", module + "/storage/storetest", module + "/storage/redisstore/redistest"},
		"packages for tests are imported only by tests"},
	{"bench", []string{module + "/..."}, "bench measures the built programs from outside"},
	{"cmd/...", []string{module + "/core", module + "/storage/...", module + "/adminapi/..."},
		"cmd only joins Caddy and the modules"},
}

// Packages import only what the arrows allow. An import in the wrong direction would let a rule move into a package in which
// no reader looks for it.
func TestImports(t *testing.T) {
	for pkg, imports := range importsOf(t) {
		for _, a := range arrows {
			if !matches(module+"/"+a.pkg, pkg) {
				continue
			}
			for _, imp := range imports {
				if imp != pkg && slices.ContainsFunc(a.forbidden, func(f string) bool { return matches(f, imp) }) {
					t.Errorf("%s imports %s: %s", pkg, imp, a.why)
				}
			}
		}
	}
}

// Every row of the table is about packages that are there: a renamed package must
// not make its row void.
func TestArrowsAreAboutSomething(t *testing.T) {
	imports := importsOf(t)
	for _, a := range arrows {
		found := false
		for pkg := range imports {
			found = found || matches(module+"/"+a.pkg, pkg)
		}
		if !found {
			t.Errorf("no package matches %q", a.pkg)
		}
	}
}

// storage/ itself holds no Go file.
func TestStorageIsAFolder(t *testing.T) {
	if _, ok := importsOf(t)[module+"/storage"]; ok {
		t.Error("there is a Go file in storage/, want only folders")
	}
}

// importsOf returns what each package of the module imports, without its tests.
func importsOf(t *testing.T) map[string][]string {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	imports := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		imports[words[0]] = words[1:]
	}
	if len(imports) < 5 {
		t.Fatalf("go list names %d packages, want all", len(imports))
	}
	return imports
}

// matches reports whether the path is the pattern, or lies below it when it ends
// in /….
func matches(pattern, path string) bool {
	below, ok := strings.CutSuffix(pattern, "/...")
	return path == pattern || ok && (path == below || strings.HasPrefix(path, below+"/"))
}
