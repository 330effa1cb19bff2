package eventlog

import (
	"errors"
	"fmt"
	"io"
	"syscall"
)

var (
	// ErrDamaged matches every [DamageError].
	ErrDamaged = errors.New("the event log is damaged")
	// ErrGone means that a position is before the first one of the log: see [Log.Remove] and [Cut].
	ErrGone = errors.New("the record was removed")
	// ErrTemporary means that the disk is full or descriptors have run out. The record is not in the log. The owner opens the log
	// again when it can be written.
	ErrTemporary = errors.New("the event log cannot be written at the moment")
	// ErrRecordSize means that a record is empty, or longer than [MaxRecord].
	ErrRecordSize = errors.New("the record is empty or too long")
	// ErrSync means that a sync has failed. It is final whatever the cause: a second sync may succeed without the bytes of the first.
	ErrSync = errors.New("the event log cannot be synced")
	// ErrClosed means that the log was closed.
	ErrClosed = errors.New("the event log is closed")
)

// DamageError names the damaged file, the byte and the fault.
type DamageError struct {
	File   string // its name in the directory of the log
	Offset int64  // in the file, in bytes
	What   string
}

// Error returns one line that names the file and the offset.
func (e *DamageError) Error() string {
	return fmt.Sprintf("%v: %s, byte %d: %s", ErrDamaged, e.File, e.Offset, e.What)
}

// Is reports whether target is [ErrDamaged].
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }

// FormatError means that a segment has another format than this package writes: it is from a later version.
type FormatError struct {
	File   string // its name in the directory of the log
	Format int
}

// Error returns one line that says which version to run.
func (e *FormatError) Error() string {
	return fmt.Sprintf("a later version of Limitkeeper wrote %s, with format %d of the event log; this version reads format %d: run the later version", e.File, e.Format, format)
}

// temporary returns the error of a write, as [ErrTemporary] if the log can be opened again and written later.
func temporary(err error) error {
	if errors.Is(err, ErrSync) {
		return err
	}
	if isDescriptors(err) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, syscall.EFBIG) {
		return fmt.Errorf("%w: %w", ErrTemporary, err)
	}
	return err
}

// isDescriptors reports whether err means that descriptors have run out.
func isDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// synced wraps the error of a sync.
func synced(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrSync, err)
}

// nonEOF returns an error that is not the end of a file.
func nonEOF(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return nil
	}
	return err
}
