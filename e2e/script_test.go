package e2e

import (
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/limitkeeper/limitkeeper/internal/freeport"
)

// The scripts in testdata run commands of the binary and check their output. The commands of a script are the commands of
// testscript and these:
//
//	ports NAME...              set each variable to a free port
//	occupy NAME                listen on a free port until the script ends, and set the variable to it
//	start NAME TEXT ARGS...    start the binary as process NAME, and wait until it prints TEXT;
//	                           its output is in NAME.out and NAME.err
//	end NAME SIGNAL CODE       end process NAME with INT, TERM or KILL, and check its exit code;
//	                           the exit code after KILL is -1
//	try NAME RESULT            run the lines of NAME.out that begin with curl, and write their
//	                           output to RESULT
//	example FILE               copy Caddyfile.example to FILE, with the ports of the variables
//	                           GATEWAY, API, UPSTREAM and ADMIN
//	expand FILE                replace the variables in FILE by their values
//	linecount FILE N           check that FILE has N lines, at most 9
func TestScripts(t *testing.T) { runScripts(t, binary, "testdata/*.txtar") }

// runScripts runs scripts with a binary. The file name of the binary must be limitkeeper.
func runScripts(t *testing.T, binary, pattern string) {
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no script matches %s: %v", pattern, err)
	}
	testscript.Run(t, testscript.Params{
		Files:              files,
		RequireUniqueNames: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("BINARY", binary)
			e.Setenv("PATH", filepath.Dir(binary)+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Values[running] = map[string]*process{}
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"ports": cmdPorts, "occupy": cmdOccupy, "start": cmdStart, "end": cmdEnd,
			"try": cmdTry, "expand": cmdExpand, "example": cmdExample, "linecount": cmdLineCount,
		},
	})
}

type key int

// running is the key of the processes of a script in testscript.Env.Values.
const running key = iota

func need(ts *testscript.TestScript, neg bool, args []string, n int, usage string) {
	if neg || len(args) < n {
		ts.Fatalf("usage: %s", usage)
	}
}

func cmdPorts(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "ports NAME...")
	for _, name := range args {
		ts.Setenv(name, freeport.Take(ts))
	}
}

func cmdOccupy(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "occupy NAME")
	ln, err := net.Listen("tcp", ":0")
	ts.Check(err)
	ts.Defer(func() { _ = ln.Close() })
	_, port, err := net.SplitHostPort(ln.Addr().String())
	ts.Check(err)
	ts.Setenv(args[0], port)
}

func cmdStart(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "start NAME TEXT ARGS...")
	env := append(os.Environ(), "HOME="+ts.Getenv("HOME"), "TMPDIR="+ts.Getenv("TMPDIR"), "LIMITKEEPER_KEY="+ts.Getenv("LIMITKEEPER_KEY"))
	p, err := launch(ts.Getenv("BINARY"), ts.MkAbs("."), args[0], env, args[2:]...)
	ts.Check(err)
	ts.Defer(p.kill)
	ts.Check(p.await(args[1]))
	ts.Value(running).(map[string]*process)[args[0]] = p
}

func cmdEnd(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 3, "end NAME SIGNAL CODE")
	sig := map[string]syscall.Signal{"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "KILL": syscall.SIGKILL}[args[1]]
	p := ts.Value(running).(map[string]*process)[args[0]]
	if p == nil || sig == 0 {
		ts.Fatalf("no process %s, or no signal %s", args[0], args[1])
	}
	code, err := p.end(sig)
	ts.Check(err)
	if got := strconv.Itoa(code); got != args[2] {
		ts.Fatalf("ended with %d, want %s:\n%s", code, args[2], p.output())
	}
}

func cmdTry(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "try NAME RESULT")
	lines := regexp.MustCompile(`(?m)^ *curl .*$`).FindAllString(ts.ReadFile(args[0]+".out"), -1)
	if len(lines) == 0 {
		ts.Fatalf("%s.out has no line to try", args[0])
	}
	ts.Check(ts.Exec("sh", "-ec", strings.Join(lines, "\necho\n")))
	ts.Check(os.WriteFile(ts.MkAbs(args[1]), []byte(ts.ReadFile("stdout")), 0o600))
}

func cmdExample(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "example FILE")
	text, err := os.ReadFile(filepath.Join(root, "Caddyfile.example"))
	ts.Check(err)
	ports := strings.NewReplacer("8443", ts.Getenv("GATEWAY"), "8444", ts.Getenv("API"), "9000", ts.Getenv("UPSTREAM"),
		"\tskip_install_trust\n", "\tskip_install_trust\n\tpersist_config off\n\tadmin localhost:"+ts.Getenv("ADMIN")+"\n")
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(ports.Replace(string(text))), 0o600))
}

func cmdExpand(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 1, "expand FILE")
	text := os.Expand(ts.ReadFile(args[0]), ts.Getenv)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text), 0o600))
}

func cmdLineCount(ts *testscript.TestScript, neg bool, args []string) {
	need(ts, neg, args, 2, "linecount FILE N")
	text := ts.ReadFile(args[0])
	if n := strings.Count(text, "\n"); args[1] != string(rune('0'+n)) {
		ts.Fatalf("%s has %d lines, want %s:\n%s", args[0], n, args[1], text)
	}
}
