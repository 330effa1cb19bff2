package deploy

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// Two builds of a release from different directories have the same bytes. The archives have what a user installs, and the binary
// says the version of the archive. To save minutes, the test builds Windows once, and only this machine's platform twice.
func TestDist(t *testing.T) {
	t.Parallel()
	if runtime.GOOS != "linux" {
		t.Skip("tools/dist needs the tools of Linux")
	}
	const version = "v1.2.3-test"
	host := runtime.GOOS + "/" + runtime.GOARCH
	dist := func(root string, platforms ...string) string {
		t.Helper()
		dir := filepath.Join(t.TempDir(), "dist")
		cmd := exec.Command(filepath.Join(root, "tools", "dist"), append([]string{dir}, platforms...)...)
		cmd.Env = append(os.Environ(), "VERSION="+version, "SOURCE_DATE_EPOCH=1700000001")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("tools/dist: %v\n%s", err, out)
		}
		return dir
	}
	if out, err := exec.Command("make", "-C", "..", "-s", "bin/cyclonedx-gomod").CombinedOutput(); err != nil {
		t.Fatalf("make bin/cyclonedx-gomod: %v\n%s", err, out)
	}
	copied := filepath.Join(t.TempDir(), "copy")
	copySources(t, copied)
	must(t, os.Mkdir(filepath.Join(copied, "bin"), 0o755))
	must(t, os.Symlink(absolute(t, "../bin/cyclonedx-gomod"), filepath.Join(copied, "bin", "cyclonedx-gomod")))
	one, two := dist(absolute(t, ".."), host, "windows/amd64"), dist(copied, host)

	sums := readFile(t, filepath.Join(one, "SHA256SUMS"))
	if other := readFile(t, filepath.Join(two, "SHA256SUMS")); !strings.HasPrefix(sums, other) {
		t.Errorf("two builds differ:\n%s\n%s", sums, other)
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = one
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("SHA256SUMS: %v\n%s", err, out)
	}

	name := "limitkeeper_" + version[1:] + "_" + strings.ReplaceAll(host, "/", "_")
	windows := "limitkeeper_" + version[1:] + "_windows_amd64"
	unpacked := t.TempDir()
	wantEntries(t, name, untar(t, filepath.Join(one, name+".tar.gz"), unpacked), "limitkeeper")
	wantEntries(t, windows, zipEntries(t, filepath.Join(one, windows+".zip")), "limitkeeper.exe")
	out, err := exec.Command(filepath.Join(unpacked, name, "limitkeeper"), "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "limitkeeper "+version+"\nCaddy v2.") {
		t.Errorf("limitkeeper version: got %q, %v, want version %s", out, err, version)
	}
	for _, name := range []string{name, windows} {
		wantSBOM(t, filepath.Join(one, name+".cdx.json"), version)
	}
}

// copySources copies the files of the checkout to dir, as a builder gets them: without git.
func copySources(t *testing.T, dir string) {
	t.Helper()
	list := exec.Command("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	list.Dir = ".."
	out, err := list.Output()
	must(t, err)
	for name := range strings.SplitSeq(strings.TrimSuffix(string(out), "\x00"), "\x00") {
		from := filepath.Join("..", name)
		info, err := os.Lstat(from)
		if os.IsNotExist(err) || err == nil && !info.Mode().IsRegular() {
			continue // deleted, and not yet committed
		}
		must(t, err)
		must(t, os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755))
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(readFile(t, from)), info.Mode().Perm()))
	}
}

// absolute returns the absolute form of a path.
func absolute(t *testing.T, path string) string {
	t.Helper()
	path, err := filepath.Abs(path)
	must(t, err)
	return path
}

// untar unpacks an archive into dir and returns the names of its files. Each entry belongs to user 0 and has the time of the commit.
func untar(t *testing.T, archive, dir string) []string {
	t.Helper()
	f, err := os.Open(archive)
	must(t, err)
	defer f.Close()
	unzipped, err := gzip.NewReader(bufio.NewReader(f))
	must(t, err)
	var names []string
	for r := tar.NewReader(unzipped); ; {
		h, err := r.Next()
		if err == io.EOF {
			return names
		}
		must(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 1700000001 {
			t.Errorf("%s: got owner %d:%d and time %v, want 0:0 and SOURCE_DATE_EPOCH", h.Name, h.Uid, h.Gid, h.ModTime)
		}
		path := filepath.Join(dir, h.Name)
		names = append(names, h.Name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		text, err := io.ReadAll(r)
		must(t, err)
		must(t, os.WriteFile(path, text, h.FileInfo().Mode().Perm()))
	}
}

// zipEntries returns the names of the files in an archive.
func zipEntries(t *testing.T, archive string) []string {
	t.Helper()
	r, err := zip.OpenReader(archive)
	must(t, err)
	defer r.Close()
	var names []string
	for _, f := range r.File {
		names = append(names, f.Name)
	}
	return names
}

// wantEntries checks that an archive has what a user installs.
func wantEntries(t *testing.T, name string, entries []string, binary string) {
	t.Helper()
	for _, want := range []string{binary, "LICENSE", "README.md", "deploy/systemd/limitkeeper.service",
		"completions/limitkeeper.bash", "completions/limitkeeper.zsh", "completions/limitkeeper.fish", "completions/limitkeeper.ps1"} {
		if !slices.Contains(entries, name+"/"+want) {
			t.Errorf("%s lacks %s", name, want)
		}
	}
	for _, entry := range entries {
		if strings.HasSuffix(entry, ".go") {
			t.Errorf("%s has %s, want no source file", name, entry)
		}
	}
}

// wantSBOM checks that a file is a CycloneDX document with our version and the modules of the binary.
func wantSBOM(t *testing.T, file, version string) {
	t.Helper()
	var sbom struct {
		BOMFormat  string `json:"bomFormat"`
		Metadata   struct{ Component struct{ Version string } }
		Components []struct{ Name, Version string }
	}
	must(t, json.Unmarshal([]byte(readFile(t, file)), &sbom))
	if sbom.BOMFormat != "CycloneDX" || sbom.Metadata.Component.Version != version {
		t.Errorf("%s: got format %q and version %q, want CycloneDX and %q", file, sbom.BOMFormat, sbom.Metadata.Component.Version, version)
	}
	for _, module := range []string{"github.com/caddyserver/caddy/v2", "github.com/dgraph-io/badger/v4", "std"} {
		if !slices.ContainsFunc(sbom.Components, func(c struct{ Name, Version string }) bool { return c.Name == module && c.Version != "" }) {
			t.Errorf("%s lacks %s", file, module)
		}
	}
}
