package e2e

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
	"github.com/limitkeeper/limitkeeper/storage/redisstore/redistest"
)

// The blocks of commands in the documents do what the documents say: all commands exit with 0, all answers of HTTP have a status
// below 300, and the answers have the status, the header fields and the members of the sample that follows the block.
// One server, the demo, serves all documents. When this fails, a reader pastes a line that does not work.
func TestDocumentCommands(t *testing.T) {
	r := newReader(t)
	for _, file := range documents(t) {
		all := blocks(t, file)
		r.readFiles(all)
		for i, b := range all {
			if b.language == "console" {
				r.shown++
			}
			if b.language != "sh" {
				continue
			}
			sample := ""
			if i+1 < len(all) && all[i+1].language == "text" && strings.TrimSpace(all[i+1].before) == "" {
				sample = all[i+1].code
			}
			if problem := r.run(b.code, sample); problem != "" {
				t.Errorf("%s: this does not work:\n%s\n%s", filepath.Base(file), b.code, problem)
			}
		}
		if filepath.Base(file) == "README.md" {
			r.afterTour()
		}
	}
	t.Logf("blocks of commands: %d run, %d shown", r.ran, r.shown)
	if r.ran < 25 {
		t.Errorf("ran %d blocks of commands, want all", r.ran)
	}
}

// reader pastes commands of the documents into a shell.
type reader struct {
	t           *testing.T
	site        *site // the demo
	dir         string
	words       *strings.Replacer // words of the documents, and what this reader has instead
	definitions string            // variables and functions of earlier blocks
	ids         map[string]string // the ids and values of the last answers, by their form
	ran, shown  int
}

// The owner's key and the directory of the demo in the documents.
const (
	sampleOwner = "lk_Tx5cIXH59Zojiqx1rbL3sSa0xc09J"
	sampleDemo  = "/tmp/limitkeeper-demo-4167957912"
)

func newReader(t *testing.T) *reader {
	r := &reader{t: t, dir: t.TempDir(), ids: map[string]string{}}
	gateway, api, admin := "localhost:"+freeport.Take(t), "localhost:"+freeport.Take(t), "localhost:"+freeport.Take(t)
	demo, err := launch(binary, r.dir, "demo", append(os.Environ(), "HOME="+r.dir), "protect", "--demo",
		"--data", r.dir+"/demo", "--from", gateway, "--api", api, "--admin", admin)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(demo.kill)
	if err := demo.await("Ctrl-C"); err != nil {
		t.Fatal(err)
	}
	owner := regexp.MustCompile(`Owner key  (lk_\w+)`).FindStringSubmatch(demo.output())
	if owner == nil {
		t.Fatalf("the demo prints no owner's key:\n%s", demo.output())
	}
	r.site = &site{t: t, url: "https://" + api, owner: owner[1]}
	pairs := []string{"localhost:8443", gateway, "localhost:8444", api, sampleOwner, owner[1], sampleDemo, r.dir + "/demo", "bin/limitkeeper", "limitkeeper"}
	for _, path := range []string{"/var/lib/", "/var/tmp/", "/backup", "/etc/limitkeeper/"} {
		pairs = append(pairs, path, r.dir+path)
		if err := os.MkdirAll(r.dir+path, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	r.words = strings.NewReplacer(pairs...)
	r.programs(admin)
	return r
}

// programs writes the programs that the commands may use, and no others: a document must not change the machine of the test. They
// call the real ones, with the addresses of this reader.
func (r *reader) programs(admin string) {
	redis := redistest.Start(r.t).Addr()
	_, port, _ := strings.Cut(redis, ":")
	writeFile(r.t, filepath.Join(r.dir, "Caddyfile"), "{\n\tlimitkeeper {\n\t\tstore redis "+redis+"\n\t}\n}\n")
	writeFile(r.t, r.dir+"/etc/limitkeeper/Caddyfile", "{\n\tadmin "+admin+"\n}\n")
	if err := os.Mkdir(r.dir+"/bin", 0o700); err != nil {
		r.t.Fatal(err)
	}
	for name, script := range map[string]string{
		"find": `exec ` + r.program("find") + ` "$@"`, "rm": `exec ` + r.program("rm") + ` "$@"`, "date": `exec ` + r.program("date") + ` "$@"`,
		"jq":        `exec ` + r.program("jq") + ` "$@"`,
		"curl":      `exec ` + r.program("curl") + ` -w '%{stderr}HTTP status %{http_code}\n' "$@"`,
		"redis-cli": `exec ` + r.program("redis-cli") + ` -e -p ` + port + ` "$@"`,
		"limitkeeper": `case "$*" in
*--store*|*--config*|*--from*) exec ` + binary + ` "$@" ;;
import*.ndjson*) exec ` + binary + ` "$@" --store badger:other ;; # the server that an account moves to
*) exec ` + binary + ` "$@" --address ` + admin + ` ;;
esac`,
	} {
		if err := os.WriteFile(filepath.Join(r.dir, "bin", name), []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			r.t.Fatal(err)
		}
	}
}

// program returns the path of a program.
func (r *reader) program(name string) string {
	r.t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		r.t.Fatalf("%v: make deps installs it", err)
	}
	return path
}

// readFiles writes the files that the commands of a document use.
func (r *reader) readFiles(all []block) {
	for _, b := range all {
		switch {
		case b.language == "csv":
			writeFile(r.t, filepath.Join(r.dir, "keys.csv"), b.code)
		case b.language == "yaml" && strings.HasPrefix(b.code, "account:"):
			writeFile(r.t, filepath.Join(r.dir, "limits.yaml"), b.code)
		}
	}
}

// afterTour makes what the other documents begin with: a key, and an account acme with a plan Pro. The commands of the README
// have defined LK, CA, API and api.
func (r *reader) afterTour() {
	id, secret := r.site.newKey(1000)
	r.definitions += fmt.Sprintf("KEY_ID=%s\nKEY=%s\n", id, secret)
	writeFile(r.t, filepath.Join(r.dir, "acme.yaml"), "account: acme\nplans: [{name: Pro, max_requests: 1000, request_period: month}]\n")
	for _, command := range []string{"limitkeeper account create acme", "limitkeeper apply acme.yaml"} {
		if out, err := r.shell(command).CombinedOutput(); err != nil {
			r.t.Fatalf("%s: %v\n%s", command, err, out)
		}
	}
}

var (
	sampleID   = regexp.MustCompile(`\b(plan_|key_|lk_user_)\w{20,}`)
	definition = regexp.MustCompile(`(?m)^(?:[A-Z_]+=.*|\w+\(\) \{.*\})$`)
	// A variable with the output of a command, on a line or several.
	answerVariable = regexp.MustCompile(`(?m)^([A-Z_]+)=\$\(`)

	httpStatus = regexp.MustCompile(`(?m)^HTTP status (\d+)$`)
	sampleHead = regexp.MustCompile(`(?m)^HTTP/\S+ (\d+)`)
	sampleName = regexp.MustCompile(`(?m)^[a-z-]+: |"\w+":`)
)

// run runs a block, and returns its output if a status or the answer differs from the sample, else "".
func (r *reader) run(code, sample string) string {
	r.ran++
	code = sampleID.ReplaceAllStringFunc(r.words.Replace(code), func(id string) string {
		if last := r.ids[sampleID.FindStringSubmatch(id)[1]]; last != "" {
			return last
		}
		return id
	})
	cmd := r.shell(code + r.saveAnswers(code))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	output := fmt.Sprintf("%v\n%s%s", err, &stdout, &stderr)
	if err != nil {
		return output
	}
	for _, d := range definition.FindAllString(code, -1) {
		if name, _, of := strings.Cut(d, "=$("); of {
			d = name + "='" + readDocument(r.t, filepath.Join(r.dir, name)) + "'"
		}
		r.definitions += d + "\n"
	}
	for _, m := range sampleID.FindAllStringSubmatch(stdout.String(), -1) {
		r.ids[m[1]] = m[0]
	}
	want := "2"
	if m := sampleHead.FindStringSubmatch(sample); m != nil {
		want = m[1]
	}
	statuses := httpStatus.FindAllStringSubmatch(stderr.String(), -1)
	for i, m := range statuses {
		if last := i == len(statuses)-1; last && !strings.HasPrefix(m[1], want) || !last && !strings.HasPrefix(m[1], "2") {
			return output
		}
	}
	if refused := `"success":false`; strings.Contains(stdout.String(), refused) && !strings.Contains(sample, refused) {
		return output
	}
	for _, name := range sampleName.FindAllString(sample, -1) {
		if !strings.Contains(strings.ToLower(stdout.String()), name) {
			return "the answer has no " + name + "\n" + output
		}
	}
	return ""
}

// saveAnswers returns commands that write each variable with the output of a command to a file of its name. Later blocks use the value: the
// command must not run again.
func (r *reader) saveAnswers(code string) (commands string) {
	for _, m := range answerVariable.FindAllStringSubmatch(code, -1) {
		commands += "\nprintf %s \"$" + m[1] + "\" >" + m[1]
	}
	return commands
}

// shell returns a command that runs lines after all earlier definitions. The command stops at the first line that fails.
func (r *reader) shell(lines string) *exec.Cmd {
	cmd := exec.Command("sh", "-ec", r.definitions+lines)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "HOME="+r.dir, "PATH="+r.dir+"/bin")
	return cmd
}
