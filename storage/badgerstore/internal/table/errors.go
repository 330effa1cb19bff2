package table

import (
	"errors"
	"fmt"
	"strings"
)

// ErrDamaged matches every [DamageError].
var ErrDamaged = errors.New("the database is damaged")

// ErrInUse means that another process, or another database of this one, has the directory open.
var ErrInUse = errors.New("another process is using it: stop that process, or name another directory")

// DamageError names a damaged file and the fault.
type DamageError struct {
	File string // its name in the directory of the database
	What string
}

// Error returns one line that names the file.
func (e *DamageError) Error() string { return fmt.Sprintf("%v: %s: %s", ErrDamaged, e.File, e.What) }

// Is reports whether target is [ErrDamaged].
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

func damage(file, format string, args ...any) error {
	return &DamageError{file, firstLine(fmt.Sprintf(format, args...))}
}

// firstLine returns a text up to its first line break: errors and panics of Badger have many lines.
func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return line
}
