package apply

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize/english"

	"github.com/limitkeeper/limitkeeper/core"
	"github.com/limitkeeper/limitkeeper/core/document"
	"github.com/limitkeeper/limitkeeper/core/secrets"
	"github.com/limitkeeper/limitkeeper/internal/problem"
)

// Problems is the error for a file that is refused. Nothing was changed.
type Problems struct{ problem.List }

// Error lists the problems, one on a line.
func (p *Problems) Error() string {
	header := english.Plural(p.Total, "problem", "") + ", nothing was changed:"
	return strings.Join(append([]string{header}, p.Lines()...), "\n  ")
}

// add adds a problem, unless it is known. Secrets in its text are masked.
func (p *Problems) add(line int, path, text string) {
	one := problem.Problem{Line: line, Path: secrets.MaskSecrets(path), Text: secrets.MaskSecrets(text)}
	if !slices.Contains(p.First, one) {
		p.Add(one)
	}
}

// err returns the problems as an error, by line, nil without problems.
func (p *Problems) err() error {
	if p.Total == 0 {
		return nil
	}
	slices.SortStableFunc(p.First, func(a, b problem.Problem) int {
		return cmp.Compare(uint(a.Line-1), uint(b.Line-1)) // without a line: last
	})
	return p
}

// addAt adds a problem of a member of an object, or of the whole object without a member.
func (p *Problems) addAt(at position, member, format string, args ...any) {
	p.add(at.lineOf(member), document.Join(at.path, member), fmt.Sprintf(format, args...))
}

// position is the place of an object in a file.
type position struct {
	line    int
	path    string
	members map[string]int // lines of the members
}

// lineOf returns the line of a member, or of the object.
func (p *position) lineOf(member string) int {
	if line, ok := p.members[member]; ok {
		return line
	}
	return p.line
}

// names are the members of the file for the fields that have other names in core.
var names = map[string]string{"plan_id": "plan", "id": "", "rules": "prices"}

// refuse adds the problem of an error of core. It returns the error if the file is not the reason for it.
func (p *Problems) refuse(at position, err error) error {
	e, ok := errors.AsType[*core.Error](err)
	if !ok || e.Code == core.CodeUnavailable {
		return err
	}
	field, text := e.Field, e.Message
	if e.Detail != "" {
		text = e.Detail
	}
	if name, other := names[field]; other {
		field = name
	}
	p.addAt(at, field, "%s", text)
	return nil
}
