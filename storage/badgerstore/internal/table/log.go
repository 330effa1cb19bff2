package table

import (
	"fmt"
	"log/slog"
	"strings"
)

// badgerLog hands badger's warnings and errors on, and keeps the rest to itself.
type badgerLog struct{ to *slog.Logger }

// Errorf implements badger.Logger. It leaves out the error that badger.Open returns, too.
func (l badgerLog) Errorf(format string, args ...any) {
	if !strings.HasPrefix(format, "Received err") {
		l.to.Error(oneLine(format, args...))
	}
}

// Warningf implements badger.Logger.
func (l badgerLog) Warningf(format string, args ...any) { l.to.Warn(oneLine(format, args...)) }

// Infof implements badger.Logger.
func (badgerLog) Infof(string, ...any) {}

// Debugf implements badger.Logger.
func (badgerLog) Debugf(string, ...any) {}

// oneLine formats a message and takes the line breaks out.
func oneLine(format string, args ...any) string {
	return "badger: " + strings.Join(strings.Fields(fmt.Sprintf(format, args...)), " ")
}
