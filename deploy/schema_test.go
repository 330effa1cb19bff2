package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// The modules with the schemas, and their sums. Only the schema files are read: no package is built.
const (
	composeModule    = "github.com/compose-spec/compose-go/v2@v2.16.2"
	composeSum       = "h1:pTp1DqQwJzFd85GzlWsSszKA1ABrV/ySqsClujIcWA8="
	kubernetesModule = "sigs.k8s.io/kubectl-validate@v0.0.4"
	kubernetesSum    = "h1:tGKuv0awYHn11Cb6KPsZKxUmHgavF46K3NvVH0Nse9U="
)

// Each file that compose.yaml mounts is in the repository.
func TestComposeMounts(t *testing.T) {
	mounts := regexp.MustCompile(`(?m)^ +- (\./[^:]+):`).FindAllStringSubmatch(readFile(t, "compose.yaml"), -1)
	if len(mounts) < 3 {
		t.Errorf("got %d mounts, want at least 3", len(mounts))
	}
	for _, m := range mounts {
		if _, err := os.Stat(m[1]); err != nil {
			t.Error(err)
		}
	}
}

// compose.yaml follows the schema of the Compose specification.
func TestCompose(t *testing.T) {
	schema := loadSchema(t, filepath.Join(moduleDir(t, composeModule, composeSum), "schema", "compose-spec.json"))
	validate := compile(t, schema, "")
	for _, doc := range documents(t, "compose.yaml") {
		if err := validate.Validate(doc); err != nil {
			t.Errorf("compose.yaml: %v", err)
		}
	}
	wantRefused(t, validate, documents(t, "compose.yaml")[0], "services", "limitkeeper")
}

// Each manifest follows the schema that Kubernetes 1.30 publishes of its kind, and has no member that the schema lacks.
func TestKubernetes(t *testing.T) {
	dir := filepath.Join(moduleDir(t, kubernetesModule, kubernetesSum), "pkg", "openapiclient", "builtins", "1.30")
	files, err := filepath.Glob("kubernetes/*.yaml")
	if err != nil || len(files) != 2 {
		t.Fatalf("got manifests %q, %v, want 2", files, err)
	}
	for _, file := range files {
		for _, doc := range documents(t, file) {
			version, kind := doc["apiVersion"].(string), doc["kind"].(string)
			t.Run(filepath.Base(file)+"/"+kind, func(t *testing.T) {
				path := filepath.Join(dir, "apis", version+".json")
				if version == "v1" {
					path = filepath.Join(dir, "api", "v1.json")
				}
				schema := loadSchema(t, path)
				forbidUnknown(schema)
				validate := compile(t, schema, "/components/schemas/"+schemaOf(t, schema, version, kind))
				if err := validate.Validate(doc); err != nil {
					t.Error(err)
				}
				wantRefused(t, validate, doc, "metadata")
			})
		}
	}
}

// wantRefused checks that the schema refuses the document with an unknown member at a path. It guards the strictness of the tests.
func wantRefused(t *testing.T, schema *jsonschema.Schema, doc map[string]any, path ...string) {
	t.Helper()
	at := doc
	for _, name := range path {
		at = at[name].(map[string]any)
	}
	at["unknown_member"] = true
	if err := schema.Validate(doc); err == nil {
		t.Errorf("the schema allows an unknown member of %q", path)
	}
	delete(at, "unknown_member")
}

// moduleDir downloads a module and returns its directory.
func moduleDir(t *testing.T, module, sum string) string {
	t.Helper()
	cmd := exec.Command("go", "mod", "download", "-json", module)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod download %s: %v\n%s", module, err, out)
	}
	var m struct{ Dir, Sum string }
	must(t, json.Unmarshal(out, &m))
	if m.Sum != sum {
		t.Fatalf("%s has sum %s, want %s", module, m.Sum, sum)
	}
	return m.Dir
}

// loadSchema reads a JSON document.
func loadSchema(t *testing.T, path string) map[string]any {
	t.Helper()
	schema, err := jsonschema.UnmarshalJSON(strings.NewReader(readFile(t, path)))
	must(t, err)
	return schema.(map[string]any)
}

// compile returns the schema at a JSON pointer of a document.
func compile(t *testing.T, doc map[string]any, pointer string) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	must(t, c.AddResource("schema.json", doc))
	schema, err := c.Compile("schema.json#" + pointer)
	must(t, err)
	return schema
}

// schemaOf returns the name of the schema of a kind.
func schemaOf(t *testing.T, doc map[string]any, version, kind string) string {
	t.Helper()
	group, v, ok := strings.Cut(version, "/")
	if !ok {
		group, v = "", version
	}
	for name, schema := range doc["components"].(map[string]any)["schemas"].(map[string]any) {
		kinds, _ := schema.(map[string]any)["x-kubernetes-group-version-kind"].([]any)
		for _, k := range kinds {
			if k := k.(map[string]any); len(kinds) == 1 && k["group"] == group && k["version"] == v && k["kind"] == kind {
				return name
			}
		}
	}
	t.Fatalf("no schema of %s %s", version, kind)
	return ""
}

// forbidUnknown makes each object of a schema refuse members that it does not name, as "kubectl apply" does.
func forbidUnknown(schema any) {
	switch s := schema.(type) {
	case map[string]any:
		if _, ok := s["properties"].(map[string]any); ok && s["type"] == "object" && s["additionalProperties"] == nil {
			s["additionalProperties"] = false
		}
		for _, sub := range s {
			forbidUnknown(sub)
		}
	case []any:
		for _, sub := range s {
			forbidUnknown(sub)
		}
	}
}

// documents returns the documents of a YAML file as JSON values.
func documents(t *testing.T, file string) []map[string]any {
	t.Helper()
	var docs []map[string]any
	for d := yaml.NewDecoder(strings.NewReader(readFile(t, file))); ; {
		var doc any
		err := d.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return docs
		}
		must(t, err)
		text, err := json.Marshal(doc)
		must(t, err)
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
		must(t, err)
		docs = append(docs, value.(map[string]any))
	}
}
