// Package eventlog is a write-ahead log that is also the history: its records stay
// readable, one by one and at random, until their segment is removed. It knows records
// (bytes) and positions, and nothing of what a record means.
//
// # Positions
//
// The log is one long sequence of bytes. A position is an offset in that sequence; the
// first is 1. The sequence is cut into segments, one file each, named by the position of
// its first byte. A position never changes and is never given twice.
//
//	position  1                      67108900              134217751
//	          ├──────────────────────┼─────────────────────┼──────────────►
//	file      0000000000000001.seg   0000000004000024.seg  0000000008000017.seg
//
// # Format 2
//
//	segment   offset
//	    0  ┌────────────────────────────────────────────────┐
//	       │ header, 44 bytes, written once: version, base, │
//	       │ base, checksum, keep and hard of the           │
//	       │ previous segment, seed, gap, CRC-32C           │
//	 1024  ├────────────────────────────────────────────────┤
//	       │ status, 40 bytes, overwritten in place         │
//	 2048  ├────────────────────────────────────────────────┤
//	       │ a copy of the status                           │
//	 4096  ├────────────────────────────────────────────────┤
//	       │ block │ block │ block │ …                      │
//	       ├────────────────────────────────────────────────┤
//	       │ zeros: room written ahead (durability power)   │
//	       └────────────────────────────────────────────────┘
//
//	block     ┌─────┬────────┬──────┬──────┬──────┬────────┬────────┬───┬────────┐
//	          │ CRC │ length │ back │ keep │ hard │ record │ record │ … │ marker │
//	          │  4  │   4    │  4   │  3   │  3   │        │        │   │   1    │
//	          └─────┴────────┴──────┴──────┴──────┴────────┴────────┴───┴────────┘
//	record    ┌─────┬────────┬─────────┐
//	          │ CRC │ length │ payload │
//	          │  4  │   3    │  1…16 M │
//	          └─────┴────────┴─────────┘
//
// The overhead is 19 bytes for each block and 7 for each record. All integers are little
// endian. Each CRC-32C starts from the position and from the random seed of the log, so that
// a block or record which lies where it does not belong is invalid. The CRC of a block
// covers its header; the records cover themselves. A block is valid when its header, each
// record and the marker (never zero) are.
//
//   - back: the sync offset of the block, as a distance. Everything up to that position was
//     on disk when the block was written.
//   - keep: until when a record of the block must be kept, hours since 1970.
//   - hard: until when a record of the block is removed in no case, likewise. See [Keep].
//   - The status says what cannot be in a header that is written once: the position up to
//     which the segment is known to be on disk, the position up to which it was written since
//     the boot (3 bytes, relative), the oldest segment that was not removed, the boot of the
//     machine, and whether a next segment exists. [Log.Sync] writes it, and in between the log
//     itself, see [Options.NoteEvery].
//
// A record is read by its position with one read, and checked by its own CRC.
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
// A crash leaves an unfinished end (a torn write), which is cut off with a warning. Everything
// else that cannot be read is damage: Open returns a [DamageError] and changes nothing. Open
// reads the last segment whole. The first invalid block there is
//
//   - room written ahead, if only zeros follow;
//   - damage, if it begins before a position that is known to be on disk: by the status, by the sync offset of any block header behind it, or by [Options.Known];
//   - on the same boot of the machine, damage, if the status says that the log was written beyond it;
//   - on the same boot of the machine, else a torn write if a killed process can have left it:
//     the beginning of one block, then zeros or the end of the file. Otherwise damage: the
//     system was not restarted, so all that was written is still there, and a valid block
//     behind an invalid one proves it;
//   - after a restart of the machine, a torn write. With durability process a power cut
//     keeps any of the pages that were not synced, a later one without an earlier one too.
//     So a valid block behind an invalid one proves nothing there, unless its sync offset does;
//     it is cut off as well. Nothing that was synced is.
//
// Each segment is synced before the next one begins. So all segments but the last must be whole:
// their length is checked by the header of the next one when the log is opened, and their
// content by [Log.Replay], [Log.Read] and [Verify].
//
// Two losses leave no trace in the files: a cut exactly between two blocks behind the last status,
// and the loss of all files. [Options.Known] detects both, up to the position that the caller stores elsewhere.
//
// # Full disk
//
// ENOSPC, EDQUOT, EFBIG, EMFILE and ENFILE are temporary. The log cuts the file back to the last
// whole block, keeps the block and tells its waiters [ErrTemporary]: the records are in memory
// of the caller and reach the log later, unless the process ends before. Until they have, new
// records are refused. [Log.Ready] and [Log.Flush] try again, at most every 100 ms. Any other
// error, and every failed sync, is final.
//
// Before it gives up on a full disk, the log asks [Options.Help] for room and writes the block once more.
// The directory and the file of the next segment are open ahead: one segment begins without a descriptor.
//
// # Removal
//
// [Log.Remove] removes the oldest segments: first the status of the last segment says,
// on disk, which segment is the oldest from now on, then the files go. A file that a crash
// left behind is removed by Open, and a file that is missing behind that point is damage.
//
// # Repair
//
// [PlanRepair] and [Repair.Apply] keep one unbroken part of a damaged log and set the rest aside. If positions behind
// the kept part were already used, Apply creates an empty segment behind all of them. The header of that segment has
// the gap flag. The status of the segment before the gap has the position at which that segment ends. Reads of
// positions in the gap return [ErrGone]. Apply creates the segment behind the gap first and writes the status last. The
// log counts as damaged in between, and can be repaired again.
//
// Segments of format 1 (frames without blocks, no seed, no status) are read and never
// appended to.
package eventlog
