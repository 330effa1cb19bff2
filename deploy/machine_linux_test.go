package deploy

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// patience is how long anything is waited for.
const patience = 60 * time.Second

// rootVariable names the environment variable with the root directory of the machine of a test.
const rootVariable = "LIMITKEEPER_TEST_ROOT"

// onMachine runs the rest of a test in a mount and a network namespace of its own: mounts do not leave the test, and each port
// is free. It returns false in the parent, which has run the test in a child process. prepare gets the directory that
// becomes the root directory of the machine; it runs before, with the network.
func onMachine(t *testing.T, prepare func(root string)) (root string, ok bool) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can mount and run a process as another user")
	}
	if root := os.Getenv(rootVariable); root != "" {
		must(t, syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""))
		enableLoopback(t)
		return root, true
	}
	dir, err := os.MkdirTemp("", "limitkeeper-machine-") // a directory of t.TempDir is closed to other users
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	prepare(dir)
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.count=1")
	cmd.Env = append(os.Environ(), rootVariable+"="+dir, binaryVariable+"="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return "", false
}

// enableLoopback brings up the loopback interface of a new network namespace.
func enableLoopback(t *testing.T) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	must(t, err)
	lo.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	must(t, unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo))
}

// machine runs processes in a root directory that is read-only, as a user without rights.
type machine struct {
	t     *testing.T
	root  string
	uid   uint32
	caps  []uintptr
	env   []string
	hosts []string    // names of the machine, beside localhost
	sites string      // the address of a site, with %s for its name: api or gateway
	ended atomic.Bool // whether a process has ended
}

// install writes the binary and its Caddyfile below a root directory.
func install(t *testing.T, root, caddyfile string) {
	t.Helper()
	text, err := os.ReadFile(binary)
	must(t, err)
	for name, text := range map[string][]byte{"usr/bin/limitkeeper": text, "etc/limitkeeper/Caddyfile": []byte(caddyfile)} {
		name = filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(name), 0o755))
		must(t, os.WriteFile(name, text, 0o755))
	}
}

// createDirs creates directories that belong to the user.
func (m *machine) createDirs(dirs ...string) {
	m.t.Helper()
	for _, dir := range dirs {
		dir = filepath.Join(m.root, dir)
		must(m.t, os.MkdirAll(dir, 0o755))
		must(m.t, os.Chmod(dir, 0o700))
		must(m.t, os.Chown(dir, int(m.uid), int(m.uid)))
	}
}

// mountRoot makes the root directory read-only, except for some directories.
func (m *machine) mountRoot(writable ...string) {
	m.t.Helper()
	must(m.t, os.MkdirAll(filepath.Join(m.root, "etc"), 0o755))
	must(m.t, os.WriteFile(filepath.Join(m.root, "etc/hosts"), []byte("127.0.0.1 localhost "+strings.Join(m.hosts, " ")), 0o644))
	must(m.t, syscall.Mount(m.root, m.root, "", syscall.MS_BIND, ""))
	m.t.Cleanup(func() { _ = syscall.Unmount(m.root, syscall.MNT_DETACH) })
	for _, dir := range writable {
		dir = filepath.Join(m.root, dir)
		must(m.t, syscall.Mount(dir, dir, "", syscall.MS_BIND, ""))
	}
	must(m.t, syscall.Mount("", m.root, "", syscall.MS_REMOUNT|syscall.MS_BIND|syscall.MS_RDONLY, ""))
	if err := os.WriteFile(filepath.Join(m.root, "written"), nil, 0o600); err == nil {
		m.t.Fatal("the root directory is writable")
	}
}

// command returns a command that runs on the machine. The first argument is looked up in /usr/bin.
func (m *machine) command(ctx context.Context, args ...string) *exec.Cmd {
	path := args[0]
	if !strings.HasPrefix(path, "/") {
		path = "/usr/bin/" + path
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Err = nil // the path is looked up in the root directory of the machine
	cmd.Args, cmd.Env, cmd.Dir = args, m.env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Chroot: m.root, Credential: &syscall.Credential{Uid: m.uid, Gid: m.uid}, AmbientCaps: m.caps, Pdeathsig: syscall.SIGKILL,
	}
	return cmd
}

// output runs a command to its end and returns its standard output. The error has the rest of the output.
func (m *machine) output(args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var errs bytes.Buffer
	cmd := m.command(ctx, args...)
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%q: %w\n%s", args, err, errs.String())
	}
	return string(out), err
}

// start runs a command until stop, which checks that the command ends with 0 after SIGTERM.
func (m *machine) start(args ...string) (stop func()) {
	m.t.Helper()
	cmd := m.command(context.Background(), args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	must(m.t, cmd.Start())
	done := make(chan error, 1)
	go func() {
		done <- cmd.Wait()
		m.ended.Store(true)
	}()
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if m.t.Failed() {
			m.t.Logf("%q:\n%s", args, out.String())
		}
	})
	return func() {
		m.t.Helper()
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-done:
			if err != nil {
				m.t.Errorf("%q: %v", args, err)
			}
		case <-time.After(patience):
			m.t.Errorf("%q does not end after SIGTERM", args)
		}
	}
}

// await waits until check returns true.
func (m *machine) await(what string, check func() bool) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); !check(); time.Sleep(20 * time.Millisecond) {
		if m.ended.Load() || time.Now().After(deadline) {
			m.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// listenNotify listens on the socket to which a service writes its state, and returns a function that waits until the service
// is ready.
func (m *machine) listenNotify(path string) (ready func()) {
	m.t.Helper()
	path = filepath.Join(m.root, path)
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(m.t, err)
	m.t.Cleanup(func() { _ = conn.Close() })
	must(m.t, os.Chown(path, int(m.uid), int(m.uid)))
	states := make(chan string, 100)
	go func() {
		for buf := make([]byte, 4096); ; {
			n, err := conn.Read(buf)
			if err != nil {
				return
			}
			states <- string(buf[:n])
		}
	}()
	return func() {
		m.t.Helper()
		m.await("READY=1", func() bool {
			select {
			case state := <-states:
				return strings.Contains(state, "READY=1")
			default:
				return false
			}
		})
	}
}
