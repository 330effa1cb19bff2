package deploy

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// The instructions of the Dockerfile make an image that serves: as its user, with a root directory that is read-only, and with an
// empty volume. Its health check fails before the server runs, and passes then. From nothing to the first refusal.
func TestImage(t *testing.T) {
	t.Parallel()
	build, img := parseDockerfile(t)
	root, ok := onMachine(t, func(root string) { build(t, root) })
	if !ok {
		return
	}
	if img.uid == 0 {
		t.Fatal("the image runs as root")
	}
	m := &machine{t: t, root: root, uid: img.uid, env: img.env, sites: "https://%s.localhost:8443"}
	m.mountRoot(img.volume)
	if _, err := m.output(img.healthcheck...); err == nil {
		t.Error("the health check passes before the server runs")
	}
	m.serveUpstream()
	stop := m.start(append(img.entrypoint, img.cmd...)...)
	m.await("the health check", func() bool {
		_, err := m.output(img.healthcheck...)
		return err == nil
	})
	m.firstRefusal("limitkeeper", "account", "create", "default", "--json")
	if got := m.status("http://127.0.0.1:8081/metrics"); got != 200 {
		t.Errorf("/metrics: got %d, want 200", got)
	}
	stop()
}

// image is the configuration of an image.
type image struct {
	env                          []string
	uid                          uint32
	volume                       string
	entrypoint, cmd, healthcheck []string
}

// parseDockerfile returns the configuration that the Dockerfile gives the image, and a function that runs its steps: it writes the
// files of the last stage to a directory. It knows the instructions of our Dockerfile only, and fails with any other.
func parseDockerfile(t *testing.T) (build func(t *testing.T, root string), img image) {
	t.Helper()
	type step struct {
		final      bool // in the last stage
		word, args string
	}
	var steps []step
	stage := 0
	for line := range strings.Lines(readFile(t, "../Dockerfile")) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		word, args, _ := strings.Cut(line, " ")
		switch word {
		case "EXPOSE", "ARG":
		case "FROM":
			stage++
		case "WORKDIR", "COPY", "RUN":
			steps = append(steps, step{stage == 2, word, args})
		case "ENV":
			img.env = append(img.env, strings.Fields(args)...)
		case "USER":
			user, _, _ := strings.Cut(args, ":")
			uid, err := strconv.ParseUint(user, 10, 32)
			must(t, err)
			img.uid = uint32(uid)
		case "VOLUME":
			img.volume = args
		case "HEALTHCHECK":
			_, args, _ = strings.Cut(args, " CMD ")
			must(t, json.Unmarshal([]byte(args), &img.healthcheck))
		case "ENTRYPOINT":
			must(t, json.Unmarshal([]byte(args), &img.entrypoint))
		case "CMD":
			must(t, json.Unmarshal([]byte(args), &img.cmd))
		default:
			t.Fatalf("the Dockerfile has the instruction %q, which this test does not know", word)
		}
	}
	return func(t *testing.T, root string) {
		t.Helper()
		scratch, workdir := t.TempDir(), "/"
		for _, s := range steps {
			switch {
			case s.word == "WORKDIR":
				workdir = s.args
			case s.word == "COPY" && !s.final:
				if s.args != ". ." {
					t.Fatalf("COPY %s: this test knows only the copy of the sources", s.args)
				}
				copySources(t, filepath.Join(scratch, workdir))
			case s.word == "COPY":
				copyFromBuild(t, scratch, root, strings.Fields(s.args))
			case s.word == "RUN":
				cmd := exec.Command("sh", "-ec", s.args)
				cmd.Dir, cmd.Env = filepath.Join(scratch, workdir), append(os.Environ(), "VERSION=v1.2.3-test")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("RUN %s: %v\n%s", s.args, err, out)
				}
			}
		}
	}, img
}

// copyFromBuild runs COPY --from=build [--chown=<uid>:<gid>] <from> <to>: it copies the files in a directory of the stage build.
func copyFromBuild(t *testing.T, scratch, root string, args []string) {
	t.Helper()
	uid := 0
	for strings.HasPrefix(args[0], "--") {
		if owner, ok := strings.CutPrefix(args[0], "--chown="); ok {
			user, _, _ := strings.Cut(owner, ":")
			var err error
			uid, err = strconv.Atoi(user)
			must(t, err)
		}
		args = args[1:]
	}
	to := filepath.Join(root, args[1])
	must(t, os.CopyFS(to, os.DirFS(filepath.Join(scratch, args[0]))))
	must(t, os.Chown(to, uid, uid))
}
