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
	"strings"
	"syscall"

	"github.com/dgraph-io/badger/v4"

	"github.com/limitkeeper/limitkeeper/storage/badgerstore/internal/table"
)

// ErrInUse means that another process, or another store of this one, has the
// directory open.
var ErrInUse = table.ErrInUse

// The files that badger writes what is committed into: its write-ahead logs and its
// value logs.
const (
	logSuffix      = table.LogSuffix
	valueLogSuffix = table.ValueLogSuffix
)

// prepareDir makes the directory, if it does not exist, and makes sure that this process
// can write to it and that nobody else can read it.
func prepareDir(dir string, log *slog.Logger) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	release, err := claim(dir)
	if err != nil {
		return err
	}
	defer release()
	if err := shut(dir, log); err != nil {
		return err
	}
	probe, err := os.CreateTemp(dir, probePrefix)
	if err != nil {
		return err
	}
	if err := errors.Join(probe.Close(), os.Remove(probe.Name())); err != nil {
		return err
	}
	if !claims {
		return nil
	}
	return removeEmpty(dir)
}

// probePrefix begins the name of the file that is made to see whether one can be.
const probePrefix = "probe"

// others are the permissions of everybody but the owner.
const others fs.FileMode = 0o077

// hasModes says whether the system has permissions of this kind. Windows has access lists.
const hasModes = runtime.GOOS != "windows"

// shut takes the permissions on the directory from everybody but its owner. Badger makes
// files as readable as the umask allows, at any time, and earlier versions left such files:
// the mode of the directory guards every file below it, also in the event log. A directory
// with other things in it is refused: programs that need these would lose them.
func shut(dir string, log *slog.Logger) error {
	info, err := os.Stat(dir)
	if err != nil || !hasModes || info.Mode()&others == 0 {
		return err
	}
	below := filepath.Join(dir, "limitkeeper")
	if info.Mode()&fs.ModeSticky != 0 { // like /tmp: shared by intent
		return fmt.Errorf("it is shared with other users: name a directory below it, such as %s", below)
	}
	name, err := foreign(dir)
	if err != nil {
		return err
	}
	if name != "" {
		return fmt.Errorf("other users can read it, and it holds other things (%s): name a directory of its own, such as %s, or run chmod 700 %s", name, below, dir)
	}
	if err := os.Chmod(dir, info.Mode()&^others); err != nil {
		return fmt.Errorf("other users can read it, and it belongs to another user: name a directory below it, such as %s, or run chmod 700 %s as its owner", below, dir)
	}
	there, err := Exists(dir)
	if there {
		log.Info("other users could read the store until now", "directory", dir, "mode_before", fmt.Sprintf("%o", info.Mode().Perm()))
	}
	return err
}

// ownNames are patterns for the names of everything in the directory of a store: the files
// of badger, the event log, and the directory that a new volume has. Names that begin with a dot,
// such as .gitkeep or .snapshot, are nobody's data.
var ownNames = []string{
	badger.ManifestFilename, "MANIFEST-REWRITE", badger.KeyRegistryFileName, badger.KeyRegistryRewriteFileName, "DISCARD", "LOCK", table.InventoryName + "*",
	"*.sst", "*" + logSuffix, "*" + valueLogSuffix, eventLogDir, asidePrefix + "*", copyDir, draftDir, probePrefix + "*", "lost+found",
}

// foreign returns the name of something in a directory that is not a store's, or "".
func foreign(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		own := slices.ContainsFunc(ownNames, func(pattern string) bool {
			match, _ := filepath.Match(pattern, entry.Name())
			return match
		})
		if !own && !strings.HasPrefix(entry.Name(), ".") {
			return entry.Name(), err
		}
	}
	return "", err
}

// advised adds to an error of the file system, or to damage, what to do about it.
func advised(dir string, err error) error {
	if isDamage(err) {
		return fmt.Errorf("%w: nothing was changed; run limitkeeper check --store badger:%s", err, dir)
	}
	var at *fs.PathError
	if !hasModes || !errors.As(err, &at) {
		return err
	}
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: name a directory", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: name a directory on another one", at.Err)
	case errors.Is(err, fs.ErrPermission) && at.Op == "mkdir":
		return fmt.Errorf("%w: name a directory that user %d can write to, or make it: install -d -m 700 -o %[2]d %s", at.Err, os.Geteuid(), dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w: run as its owner, or first run chown -R %d %s && chmod 700 %[3]s", at.Err, os.Geteuid(), dir)
	}
	return err
}

// removeEmpty removes logs without a byte. A process that is killed between making
// a log and giving it its size, or between emptying one that is no longer needed and
// removing it, leaves such a file, and badger refuses to open a directory that has
// one.
func removeEmpty(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, file := range files {
		if ext := filepath.Ext(file.Name()); ext != logSuffix && ext != valueLogSuffix {
			continue
		}
		info, err := file.Info()
		if err == nil && info.Size() == 0 {
			err = os.Remove(filepath.Join(dir, file.Name()))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
