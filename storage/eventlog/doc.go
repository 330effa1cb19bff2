// Package eventlog is a write-ahead log that is also the history: each record stays readable by its position until its
// segment is removed. Records are bytes; the package does not know their meaning.
//
// # Positions
//
// The log is one long sequence of bytes. A position is an offset in that sequence; the
// first is 1. The sequence is cut into segments, one file each, named by the position of
// its first byte. A position never changes and is never reused.
//
//	position  1                      67108900              134217751
//	          ├──────────────────────┼─────────────────────┼──────────────►
//	file      0000000000000001.seg   0000000004000024.seg  0000000008000017.seg
//
// # Format 1
//
//	segment   offset
//	    0  ┌────────────────────────────────────────────────┐
//	       │ header, 44 bytes, written once: format; base;  │
//	       │ base and checksum of the previous segment;     │
//	       │ seed; keep and hard of the previous segment;   │
//	       │ CRC-32C                                        │
//	 1024  ├────────────────────────────────────────────────┤
//	       │ status, 32 bytes, overwritten in place         │
//	 2048  ├────────────────────────────────────────────────┤
//	       │ a copy of the status                           │
//	 4096  ├────────────────────────────────────────────────┤
//	       │ block │ block │ block │ …                      │
//	       ├────────────────────────────────────────────────┤
//	       │ preallocated zeros (durability power)          │
//	       └────────────────────────────────────────────────┘
//
//	block     ┌─────┬────────┬──────┬──────┬──────┬────────┬────────┬───┬────────┐
//	          │ CRC │ length │ back │ keep │ hard │ record │ record │ … │ marker │
//	          │  4  │   4    │  4   │  4   │  4   │        │        │   │   1    │
//	          └─────┴────────┴──────┴──────┴──────┴────────┴────────┴───┴────────┘
//	record    ┌─────┬────────┬─────────┐
//	          │ CRC │ length │ payload │
//	          │  4  │   4    │  1…1 G  │
//	          └─────┴────────┴─────────┘
//
// The overhead is 21 bytes for each block and 8 for each record. All integers are little
// endian. Each CRC-32C of a block, record or status starts from the position and from the random seed of
// the log, so that a block or record at a wrong position is invalid. That of the header, which has the seed, starts from
// the base alone. The CRC of a block covers only its header,
// because each record has its own. A block is valid when its header, each record and the
// marker, which is never zero, are valid.
//
//   - back: the synced position when the block was written, as a distance. Everything up to that position was
//     on disk when the block was written.
//   - keep: the end of the retention of all records in the block, in hours since 1970.
//   - hard: the time before which the block must not be removed at all, in hours since 1970. See [Keep].
//   - The status has the values that change: the synced position, up to which the segment is known to be on disk, the
//     first position of the log, and whether a next segment exists. [Log.Sync], [Log.Remove] and the next segment write it.
//
// Reading a record takes one read of the file, and verifies the CRC of the record.
//
// # Group commit
//
// [Log.Append] puts a record into the open block, in memory. The first caller that waits
// for a block is its leader and writes it; later callers are followers. While a block is
// being written the next one collects records, and its leader waits for its turn.
// With durability power a block is synced before its waiters return. Otherwise the owner
// of the log calls [Log.Sync] once a second.
//
// # Damage and torn writes
//
// Open cuts off a torn write. It refuses damage before the synced position. Open reads the last
// segment completely. The first invalid block in it is
//
//   - damage, if it begins before a position that is known to be on disk: by the status, by the
//     synced position in any block header after it, or by [Options.Known]. Open returns a [DamageError] and changes nothing;
//   - preallocated space, if only zeros follow;
//   - otherwise a torn write, which a crash has left. Open cuts it off and calls [Options.OnTorn]. A power cut keeps any of
//     the unsynced pages, also a later page without an earlier one. So valid blocks after it are cut off too.
//
// Each segment is synced before the next one begins, so all segments except the last one must be
// complete. Open checks their lengths by the header of the next segment. [Log.Replay], [Log.Read]
// and [Verify] check their content.
//
// Two losses leave no trace in the files: a cut exactly between two blocks after the synced position of the status,
// and the loss of all files. [Options.Known] detects both, up to the position that the caller stores elsewhere.
//
// # Full disk
//
// After any error of a write or sync, the log refuses all records, and the waiters of the block get the error. ENOSPC, EDQUOT,
// EFBIG, EMFILE and ENFILE of a write are [ErrTemporary]: the owner opens the log again when it can be written. Open cuts off what a
// failed write has left. A failed sync is final: a second sync may succeed without the bytes of the first.
//
// # Removal
//
// [Log.Remove] removes the oldest segments. It first syncs a status of the last segment with the
// base of the new oldest segment as the first position, and then removes the files. Open removes older files that a
// crash has left. A missing file from the oldest segment on is damage.
//
// # Repair
//
// [Verify] finds the runs of a damaged log: the parts in which every record can be read. [Cut] keeps a part of one run, and gives
// up the rest. It changes no segment. It renames the segments that have nothing of that part, and begins a new last segment:
//
//	          run      damage       run        damage
//	before  ├──────┬─────╳╳────┬──────────┬─────╳╳─────┤
//	after                  ├───┼──────────┼─────┼──────────────►
//
// The status of the new segment has the first position of the log, which may be within the oldest segment. Reads before
// it return [ErrGone]. The previous segment ends where the new one begins, whatever follows in its file.
//
// # Other formats
//
// The header begins with 7 bytes of text and the number of the format, in 1 byte. Every later format keeps the length of the
// header, the place of the base, and the CRC. So a segment of a later format is a [FormatError], and no damage.
package eventlog
