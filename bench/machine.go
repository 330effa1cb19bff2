package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
)

// machine describes the machine of a measurement.
type machine struct {
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Memory   string            `json:"memory"`
	Kernel   string            `json:"kernel"`
	Go       string            `json:"go"`
	Programs map[string]string `json:"programs"` // versions, by name
}

// versionCommands print the version of a program, on standard output or standard error.
var versionCommands = map[string][]string{
	"wrk":   {"wrk", "-v"},
	"nginx": {"nginx", "-v"},
	"Redis": {"redis-server", "--version"},
}

// versionPattern finds a version in the output of a version command.
var versionPattern = regexp.MustCompile(`\d+(\.\d+)+[-+.~\w]*`)

// thisMachine describes this machine and the installed programs.
func thisMachine(ctx context.Context, limitkeeper string) machine {
	m := machine{Cores: runtime.NumCPU(), Go: strings.TrimPrefix(runtime.Version(), "go"), Programs: map[string]string{}}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = field(text, "model name")
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		m.Memory = gibibytes(field(text, "MemTotal"))
	}
	if text, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = string(bytes.TrimSpace(text))
	}
	for name, argv := range versionCommands {
		// wrk prints its version and exits with status 1.
		text, _ := exec.CommandContext(ctx, argv[0], argv[1:]...).CombinedOutput()
		if v := versionPattern.FindString(string(text)); v != "" {
			m.Programs[name] = v
		}
	}
	if v := moduleVersion(limitkeeper, "github.com/caddyserver/caddy/v2"); v != "" {
		m.Programs["Caddy"] = v
	}
	return m
}

// field returns the value of the first line "name: value".
func field(text []byte, name string) string {
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// gibibytes rounds a size of /proc/meminfo.
func gibibytes(s string) string {
	var kib int64
	if _, err := fmt.Sscanf(s, "%d kB", &kib); err != nil {
		return ""
	}
	return fmt.Sprintf("%d GiB", (kib+1<<19)>>20)
}

// moduleVersion returns the version of a module in the build information of a Go program,
// "" when the program or the module is absent.
func moduleVersion(program, module string) string {
	info, err := buildinfo.ReadFile(program)
	if err != nil {
		return ""
	}
	if info.Main.Path == module {
		return info.Main.Version
	}
	for _, d := range info.Deps {
		if d.Path == module {
			return d.Version
		}
	}
	return ""
}

// kind names machines whose rates are comparable.
func (m machine) kind() string { return fmt.Sprintf("%d cores of %s", m.Cores, m.CPU) }

// String describes the machine in one line.
func (m machine) String() string {
	return fmt.Sprintf("%s, %s of memory, Linux %s, Go %s", m.kind(), m.Memory, m.Kernel, m.Go)
}

// versions lists the installed ones of some programs with their versions.
func (m machine) versions(names ...string) string {
	var all []string
	for _, n := range names {
		if v, ok := m.Programs[n]; ok {
			all = append(all, n+" "+strings.TrimPrefix(v, "v"))
		}
	}
	return strings.Join(all, ", ")
}
