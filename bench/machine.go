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

// machine is where something was measured.
type machine struct {
	CPU      string            `json:"cpu"`
	Cores    int               `json:"cores"`
	Memory   string            `json:"memory"`
	Kernel   string            `json:"kernel"`
	Go       string            `json:"go"`
	Programs map[string]string `json:"programs"` // versions, by name
}

// versionCommands print the version of a program, on either output.
var versionCommands = map[string][]string{
	"wrk":     {"wrk", "-v"},
	"h2load":  {"h2load", "--version"},
	"nginx":   {"nginx", "-v"},
	"HAProxy": {"haproxy", "-v"},
	"Redis":   {"redis-server", "--version"},
}

// versionPattern finds a version in what a program says of itself.
var versionPattern = regexp.MustCompile(`\d+(\.\d+)+[-+.~\w]*`)

// thisMachine describes the machine and the programs that are there.
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
		// Some print it and fail nevertheless.
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

// field returns what follows a name and a colon at the beginning of a line.
func field(text []byte, name string) string {
	for line := range strings.Lines(string(text)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == name {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// gibibytes rounds what /proc/meminfo says.
func gibibytes(s string) string {
	var kib int64
	if _, err := fmt.Sscanf(s, "%d kB", &kib); err != nil {
		return ""
	}
	return fmt.Sprintf("%d GiB", (kib+1<<19)>>20)
}

// moduleVersion returns the version of a module, or of the main module, in a program of
// Go.
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

// String describes the machine in a line, with the programs that were measured.
func (m machine) String() string {
	return fmt.Sprintf("%d cores of %s, %s of memory, Linux %s, Go %s", m.Cores, m.CPU, m.Memory, m.Kernel, m.Go)
}

// versions lists programs with their versions, those that are there.
func (m machine) versions(names ...string) string {
	var all []string
	for _, n := range names {
		if v, ok := m.Programs[n]; ok {
			all = append(all, n+" "+strings.TrimPrefix(v, "v"))
		}
	}
	return strings.Join(all, ", ")
}
