package freeport

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

// taken is the number of ports that each process takes, from several blocks.
const taken = 2*blockSize + blockSize/2

// other is set in the environment of a second process of TestTake.
const other = "FREEPORT_TEST_OTHER"

// Goroutines of two processes that run at the same time get different ports.
func TestTake(t *testing.T) {
	if os.Getenv(other) != "" {
		fmt.Println(strings.Join(takeMany(t), " "))
		_, _ = io.Copy(io.Discard, os.Stdin) // holds the ports until the other process has its own
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestTake$")
	cmd.Env, cmd.Stderr = append(os.Environ(), other+"=1"), os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ports := takeMany(t)
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Errorf("the second process: %v", err)
	}
	_ = stdin.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("the second process: %v", err)
	}
	ports = append(ports, strings.Fields(line)...)
	distinct := map[string]bool{}
	for _, port := range ports {
		distinct[port] = true
	}
	if len(ports) != 2*taken || len(distinct) != 2*taken {
		t.Errorf("got %d ports, %d of them distinct, want %d", len(ports), len(distinct), 2*taken)
	}
}

// takeMany takes ports in concurrent goroutines.
func takeMany(t *testing.T) []string {
	ports := make([]string, taken)
	var all sync.WaitGroup
	for i := range ports {
		all.Go(func() { ports[i] = Take(t) })
	}
	all.Wait()
	return ports
}

// Take skips a port when another socket listens on the port or on its bus port, also on one address only.
func TestTakeSkipsListeners(t *testing.T) {
	for _, offset := range []int{0, busOffset} {
		port := Take(t)
		next-- // give the port back
		busy, err := listen("127.0.0.1", next+offset)
		if err != nil {
			t.Fatal(err)
		}
		if got := Take(t); got == port {
			t.Errorf("got port %s, while another socket listens on %v", got, busy.Addr())
		}
		_ = busy.Close()
	}
}
