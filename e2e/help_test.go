package e2e

import (
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// Each help text says what to type, limitkeeper and not caddy, and where the documentation is. Each command of ours, and each of its subcommands, has an example. No command
// replaces the binary with a Caddy without Limitkeeper.
func TestHelp(t *testing.T) {
	root := help(t)
	ours := strings.FieldsFunc(regexp.MustCompile(`(?s)The commands (.*) are Limitkeeper's`).FindStringSubmatch(root)[1],
		func(r rune) bool { return strings.ContainsRune(", \n", r) })
	ours = slices.DeleteFunc(ours, func(word string) bool { return word == "and" })
	commands := subcommands(root)
	caddy := regexp.MustCompile(`\bcaddy (` + strings.Join(commands, "|") + `)\b`)
	var walk func(path []string, text string)
	walk = func(path []string, text string) {
		if found := caddy.FindString(text); found != "" {
			t.Errorf("the help of %q says %q", path, found)
		}
		if !strings.Contains(text, "\nhttps://github.com/limitkeeper/limitkeeper/tree/main/docs\n\nThe documentation of Caddy's commands is available at:\n") {
			t.Errorf("the help of %q does not say where the documentation is", path)
		}
		if len(path) > 0 && slices.Contains(ours, path[0]) &&
			!strings.Contains(text, "\nExamples:\n  limitkeeper "+strings.Join(path, " ")) {
			t.Errorf("the help of %q has no example:\n%s", path, text)
		}
		for _, name := range subcommands(text) {
			sub := append(slices.Clone(path), name)
			walk(sub, help(t, sub...))
		}
	}
	walk(nil, root)
	for _, name := range ours {
		if !slices.Contains(commands, name) {
			t.Errorf("the help names the command %q, which does not exist", name)
		}
	}
	for _, name := range []string{"upgrade", "add-package", "remove-package"} {
		if slices.Contains(commands, name) {
			t.Errorf("the help has the command %q, which downloads a Caddy without Limitkeeper", name)
		}
	}
	if len(ours) < 14 || len(commands) < 30 {
		t.Errorf("got %d commands, %d of them ours, want all", len(commands), len(ours))
	}
}

// help returns the help of a command.
func help(t *testing.T, path ...string) string {
	t.Helper()
	out, err := exec.Command(binary, append(slices.Clone(path), "--help")...).Output()
	if err != nil {
		t.Fatalf("limitkeeper %q --help: %v", path, err)
	}
	return string(out)
}

// subcommands returns the names of the subcommands in a help text.
func subcommands(text string) []string {
	_, list, _ := strings.Cut(text, "\nAvailable Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var names []string
	for line := range strings.Lines(list) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "help" {
			names = append(names, fields[0])
		}
	}
	return names
}
