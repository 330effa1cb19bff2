package limitkeeper_test

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/limitkeeper/limitkeeper"

// forbiddenImports lists what a package must not import, with the reason. The tests of the package may import it. A path
// that ends in /... matches the package and all packages below it.
var forbiddenImports = []struct {
	pkg       string
	forbidden []string
	why       string
}{
	{"core/...", []string{"net/http", "log", "log/slog", "go.uber.org/zap/...", "github.com/caddyserver/...",
		"github.com/dgraph-io/...", "github.com/redis/...", "database/sql",
		module + "/internal/exchange",
		module + "/adminapi/...", module + "/apply", module + "/caddymodule/...", module + "/storage/..."},
		"core decides: no HTTP, no database, no Caddy, no logger, and of this module only internal/"},
	{"core/secrets", []string{module + "/..."}, "secrets know no accounts, users or keys"},
	{"core", []string{module + "/core/signin", module + "/core/service"}, "the model and the rules are below what uses them"},
	{"core/signin", []string{module + "/core/service"}, "signing in needs no decisions"},
	{"webhook", []string{"github.com/caddyserver/...", "go.uber.org/zap/...", module + "/storage/...", module + "/caddymodule/...", module + "/adminapi/..."},
		"webhook delivers over any store, without Caddy"},
	{"apply", []string{"net/http", "log", "log/slog", "go.uber.org/zap/...", "github.com/caddyserver/...",
		module + "/adminapi/...", module + "/caddymodule/...", module + "/storage/..."},
		"apply compares files with accounts through core, over any store"},
	{"internal/...", []string{module + "/..."}, "the packages are generic: they have no code for accounts, keys or counters"},
	{"storage/...", []string{"net/http", "github.com/caddyserver/...", module + "/adminapi/...", module + "/caddymodule/..."},
		"stores persist: they use core and their database only"},
	{"storage/record", []string{module + "/storage/..."}, "a record encodes resources of core, for every store"},
	{"storage/ranking", []string{module + "/storage/memstore", module + "/storage/badgerstore/...", module + "/storage/redisstore/...",
		module + "/storage/storetest", module + "/storage/archive"}, "a store uses the rankings"},
	{"storage/resource", []string{module + "/storage/memstore", module + "/storage/badgerstore/...", module + "/storage/redisstore/...",
		module + "/storage/storetest", module + "/storage/archive"}, "a database implements what resource needs"},
	{"storage/memstore", []string{module + "/storage/badgerstore", module + "/storage/redisstore/...", module + "/storage/storetest",
		module + "/storage/archive"}, "a store does not use another store"},
	{"storage/badgerstore", []string{module + "/storage/memstore", module + "/storage/redisstore/...", module + "/storage/storetest",
		module + "/storage/archive"}, "a store does not use another store"},
	{"storage/badgerstore/internal/cachetable", []string{module + "/...", "github.com/dgraph-io/..."}, "the table is generic, without Badger or core"},
	{"storage/eventlog", []string{module + "/...", "github.com/dgraph-io/...", "log/slog"},
		"the log stores bytes at positions, without Badger or core"},
	{"storage/badgerstore/internal/rankset", []string{module + "/...", "github.com/dgraph-io/...", "log/slog"},
		"a set reads and writes records by key, without Badger or core"},
	{"storage/badgerstore/internal/diskspace", []string{module + "/storage/...", "net/http"}, "the package watches free space, and knows no records"},
	{"storage/badgerstore/internal/table", []string{module + "/..."}, "the package handles files of Badger, and no records of Limitkeeper"},
	{"storage/redisstore", []string{module + "/storage/memstore", module + "/storage/badgerstore", module + "/storage/storetest",
		module + "/storage/archive", module + "/storage/redisstore/..."}, "a store does not use another store"},
	{"storage/redisstore/redistest", []string{module + "/core/...", module + "/storage/..."}, "the test servers for a store do not use the store"},
	{"storage/archive", []string{module + "/storage/badgerstore", module + "/storage/redisstore", module + "/storage/memstore", module + "/storage/storetest"},
		"an archive is of any store"},
	{"storage/storetest", []string{module + "/storage/badgerstore", module + "/storage/redisstore/...", "github.com/dgraph-io/...", "github.com/redis/..."},
		"the conformance suite uses the interface core.Store only"},
	{"adminapi/...", []string{"github.com/caddyserver/...", "go.uber.org/zap/...", module + "/storage/...", module + "/caddymodule/..."},
		"adminapi translates HTTP to core, without Caddy and over any store"},
	{"keyimport", []string{"net/http", "github.com/caddyserver/...", "go.uber.org/zap/...", module + "/storage/...", module + "/caddymodule/...", module + "/adminapi/..."},
		"keyimport translates CSV to core, without Caddy and over any store"},
	{"adminapi", []string{module + "/adminapi/dashboard"}, "the API and the dashboard are independent, and both use core"},
	{"adminapi/dashboard", []string{module + "/adminapi"}, "the API and the dashboard are independent, and both use core"},
	{"caddymodule", []string{module + "/caddymodule/...", module + "/apply", module + "/keyimport", module + "/storage/archive",
		module + "/storage/memstore", module + "/storage/storetest", module + "/storage/redisstore/redistest", module + "/internal/freeport"},
		"caddymodule serves: the commands use it, and packages for tests are imported only by tests"},
	{"caddymodule/command", []string{module + "/caddymodule/caddytest",
		module + "/storage/memstore", module + "/storage/storetest", module + "/storage/redisstore/redistest", module + "/internal/freeport"},
		"packages for tests are imported only by tests"},
	{"caddymodule/caddytest", []string{module + "/caddymodule/..."}, "the tests of caddymodule use caddytest"},
	{"cmd/...", []string{module + "/core", module + "/storage/...", module + "/adminapi/..."},
		"cmd only joins Caddy and the modules"},
}

// No package has a forbidden import. An import in the wrong direction lets a rule of one package move into another, where
// no reader looks for it.
func TestImports(t *testing.T) {
	for pkg, imports := range importsOf(t) {
		for _, a := range forbiddenImports {
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

// Every row of forbiddenImports matches a package. Otherwise the rename of a package would switch off its row.
func TestForbiddenImportsNamePackages(t *testing.T) {
	imports := importsOf(t)
	for _, a := range forbiddenImports {
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

// No source file has more than 400 lines, tests aside: a file is one noun.
func TestFilesAreSmall(t *testing.T) {
	const most = 400
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.go").Output()
	if err != nil {
		t.Fatalf("git ls-files: %v", err)
	}
	for name := range strings.Lines(string(out)) {
		name = strings.TrimSpace(name)
		text, err := os.ReadFile(name)
		if strings.HasSuffix(name, "_test.go") || os.IsNotExist(err) { // deleted, and not yet committed
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(text), "\n"); lines > most {
			t.Errorf("%s has %d lines; want at most %d", name, lines, most)
		}
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
