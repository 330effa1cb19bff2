package badgerstore

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/diskspace"
	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// ErrInUse means that another process, or another store in this process, has the directory open.
var ErrInUse = table.ErrInUse

// The suffixes of Badger's write-ahead logs and value logs.
const (
	logSuffix      = table.LogSuffix
	valueLogSuffix = table.ValueLogSuffix
)

// errForeign means that a directory has the database of another program.
var errForeign = errors.New("it has the database of another program: name another directory")

// prepareDir claims the directory of a store until release is called. It creates the directory and that of the event log if they
// do not exist, checks that this process can write to them, and takes all permissions from other users.
func prepareDir(dir string, log *slog.Logger) (release func(), err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	if release, err = table.Claim(dir); err != nil {
		return nil, err
	}
	events := filepath.Join(dir, eventLogDir)
	if err = restrictDir(dir, log); err == nil && exists(filepath.Join(dir, badger.ManifestFilename)) && !exists(events) && logOnDisk(dir) == 0 {
		err = errForeign
	}
	if err == nil {
		err = probe(dir)
	}
	if err == nil {
		err = os.MkdirAll(events, 0o700)
	}
	if err != nil {
		release()
	}
	return release, err
}

// probe returns an error when this process cannot create a file in a directory.
func probe(dir string) error {
	file, err := os.CreateTemp(dir, probePrefix)
	if err != nil {
		return err
	}
	return errors.Join(file.Close(), os.Remove(file.Name()))
}

// errLost means that a path of an open store no longer leads to the opened directory.
var errLost = errors.New("the directory was deleted or replaced: restore it, then restart this process")

// sameDir returns errLost unless the path still leads to the directory. It opens the directory, so it
// fails when descriptors have run out, too.
func sameDir(path string, identity fs.FileInfo) error {
	dir, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) || errors.Is(err, syscall.ESTALE) {
		return errLost
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	info, err := dir.Stat()
	if err == nil && !os.SameFile(info, identity) {
		return errLost
	}
	return err
}

// sameDirs returns an error unless the paths of the store and of its event log still lead to the directories of the first call.
func (s *Store) sameDirs() error {
	for i, path := range []string{s.dir, filepath.Join(s.dir, eventLogDir)} {
		if i == len(s.identity) {
			info, err := os.Stat(path)
			if err != nil {
				return err
			}
			s.identity = append(s.identity, info)
		}
		if err := sameDir(path, s.identity[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkDir fails the store when one of its directories is lost, or its file system has become read-only.
func (s *Store) checkDir() {
	if err := s.sameDirs(); errors.Is(err, errLost) {
		_ = s.fail(err)
	}
	if _, _, err := s.space.Space(s.dir); errors.Is(err, syscall.EROFS) {
		_ = s.fail(readOnlyError(err))
	}
}

func readOnlyError(err error) error {
	return fmt.Errorf("the file system cannot be written: %w: repair or remount it, then restart this process", err)
}

// touch fails the store when its file system can no longer be written, and returns the error. A file system that has
// met an error, like ext4 with errors=remount-ro, reports the error only to writes.
func (s *Store) touch() error {
	now := time.Now()
	if err := os.Chtimes(s.dir, now, now); errors.Is(err, syscall.EROFS) || errors.Is(err, syscall.EIO) {
		return s.fail(readOnlyError(err))
	}
	return nil
}

// ready returns an error when Badger must not be written to: without the directory, a file descriptor or disk space,
// Badger ends the process or loses tables.
func (s *Store) ready() error {
	if err := sameDir(s.dir, s.identity[0]); errors.Is(err, errLost) || noDescriptors(err) {
		return s.fail(err)
	}
	return firstOf(s.touch(), s.space.Ready())
}

// noDescriptors reports whether err means that file descriptors have run out.
func noDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

// probePrefix begins the name of the file by which prepareDir finds out whether it can create files.
const probePrefix = "probe"

// groupAndOthers are the permission bits of all users except the owner.
const groupAndOthers fs.FileMode = 0o077

// hasModes reports whether the system has permission bits. Windows has access control lists.
const hasModes = runtime.GOOS != "windows"

// restrictDir takes the permissions on the directory from all users except its owner. Badger creates files with the
// permissions that the umask allows, so the mode of the directory has to guard all files below it. restrictDir refuses
// a directory with other files, because other programs would lose access to them.
func restrictDir(dir string, log *slog.Logger) error {
	info, err := os.Stat(dir)
	if err != nil || !hasModes || info.Mode()&groupAndOthers == 0 {
		return err
	}
	below := filepath.Join(dir, "limitkeeper")
	if info.Mode()&fs.ModeSticky != 0 { // a directory for all users, like /tmp
		return fmt.Errorf("it is shared with other users: name a directory below it, such as %s", below)
	}
	name, err := foreignEntry(dir)
	if err != nil {
		return err
	}
	if name != "" {
		return fmt.Errorf("other users can read it, and it holds other things (%s): name a directory of its own, such as %s, or run chmod 700 %s", name, below, dir)
	}
	if err := os.Chmod(dir, info.Mode()&^groupAndOthers); err != nil {
		return fmt.Errorf("other users can read it, and it belongs to another user: name a directory below it, such as %s, or run chmod 700 %s as its owner", below, dir)
	}
	exists, err := Exists(dir)
	if exists {
		log.Info("other users could read the store until now", "directory", dir, "mode_before", fmt.Sprintf("%o", info.Mode().Perm()))
	}
	return err
}

// ownNames are patterns for all other names in the directory of a store, and names that other programs leave in any directory:
// lost+found of a new volume, and names that begin with a dot, such as .gitkeep and .snapshot.
var ownNames = []string{"LOCK", eventLogDir, table.ImagePrefix + "*", probePrefix + "*", "lost+found", ".*"}

// foreignEntry returns the name of an entry of a directory that does not belong to a store, or "".
func foreignEntry(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		isOwn := func(pattern string) bool {
			match, _ := filepath.Match(pattern, entry.Name())
			return match
		}
		if !slices.ContainsFunc(ownNames, isOwn) && !slices.ContainsFunc(table.Names, isOwn) {
			return entry.Name(), err
		}
	}
	return "", err
}

// withAdvice adds advice to an error of the file system or to damage.
func withAdvice(dir string, err error) error {
	if isDamage(err) {
		return fmt.Errorf("%w: no data was changed; run limitkeeper check --store badger:%s", err, dir)
	}
	if diskspace.NoRoom(err) && !errors.Is(err, diskspace.ErrFull) {
		return fmt.Errorf("%w: free space on the disk", err)
	}
	var at *fs.PathError
	if !hasModes || !errors.As(err, &at) {
		return err
	}
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: name a directory", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: name a directory on a writable file system", at.Err)
	case errors.Is(err, fs.ErrPermission) && at.Op == "mkdir":
		return fmt.Errorf("%w: name a directory that user %d can write to, or make it: install -d -m 700 -o %[2]d %s", at.Err, os.Geteuid(), dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run as its owner, or first run chown -R %d %s && chmod 700 %[3]s", at.Err, os.Geteuid(), dir)
	}
	return err
}
