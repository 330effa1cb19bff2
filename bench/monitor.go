package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// scriptCall is a call of a script as a client has sent it.
type scriptCall struct {
	text  string
	keys  []string
	args  []string
	lists int64 // how often it has put something into a list: once for each history
}

// intoLists are the commands that put something into a list.
var intoLists = []string{"lpush", "rpush"}

// watchCall returns the call of a script that do leads to, with the text of the script:
// the server forgets its scripts before, and is asked to show what it is told.
func (s *redisServer) watchCall(ctx context.Context, c redisClient, do func() error) (call scriptCall, err error) {
	if err := c.do(ctx, "SCRIPT", "FLUSH").Error(); err != nil {
		return call, err
	}
	conn, err := net.DialTimeout("tcp", s.addr, 5*time.Second)
	if err != nil {
		return call, err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return call, err
	}
	if _, err := io.WriteString(conn, "MONITOR\r\n"); err != nil {
		return call, err
	}
	lines := bufio.NewReader(conn)
	if line, err := lines.ReadString('\n'); err != nil || line != "+OK\r\n" {
		return call, fmt.Errorf("MONITOR: got %q, %w", line, err)
	}
	if err := do(); err != nil {
		return call, err
	}
	const end = "that is all" // what is shown comes in order
	if err := c.do(ctx, "ECHO", end).Error(); err != nil {
		return call, err
	}
	var shown []string
	for {
		line, err := lines.ReadString('\n')
		if err != nil {
			return call, err
		}
		if strings.Contains(line, end) {
			return parseCall(shown)
		}
		shown = append(shown, line)
	}
}

// Each line that MONITOR shows has who sent the command, and the quoted words of it.
var (
	monitorLine = regexp.MustCompile(`^\+?[\d.]+ \[\d+ ([^\]]*)\] (.*?)\r?\n?$`)
	monitorWord = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
)

// parseCall finds the one EVAL in what MONITOR has shown, and what its script did.
func parseCall(lines []string) (call scriptCall, err error) {
	var found [][]string
	for _, line := range lines {
		parts := monitorLine.FindStringSubmatch(line)
		if parts == nil {
			return call, fmt.Errorf("MONITOR: unexpected line %q", line)
		}
		var words []string
		for _, quoted := range monitorWord.FindAllString(parts[2], -1) {
			word, err := strconv.Unquote(quoted)
			if err != nil {
				return call, fmt.Errorf("MONITOR: %s: %w", quoted, err)
			}
			words = append(words, word)
		}
		switch command := strings.ToLower(words[0]); {
		case parts[1] == "lua" && slices.Contains(intoLists, command):
			call.lists++
		case command == "eval":
			found = append(found, words)
		}
	}
	if len(found) != 1 || len(found[0]) < 3 {
		return call, fmt.Errorf("a decision is %d calls of a script with its text, want 1:\n%s", len(found), strings.Join(lines, ""))
	}
	words := found[0]
	n, err := strconv.Atoi(words[2])
	if err != nil || n < 1 || n > len(words)-3 {
		return call, fmt.Errorf("EVAL has %q keys", words[2])
	}
	call.text, call.keys, call.args = words[1], words[3:3+n], words[3+n:]
	return call, nil
}
