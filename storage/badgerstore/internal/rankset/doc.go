// Package rankset keeps ordered sets of numbers in a key-value store. The size of a set, and a page of its
// members at any offset, take at most five look-ups, however large the set is.
//
// A set has one of two forms. A small set, of up to 64 numbers, is one record. A large set is a tree of three levels:
//
//	root   the number of members below each mid
//	 │
//	 ├─ mid    covers 131,072 consecutive numbers: the number of members in each leaf
//	 │   │
//	 │   ├─ leaf    covers 1,024 consecutive numbers: a bit for each
//	 │   └─ …
//	 └─ …
//
// Adding or removing a number writes three records of at most some hundred bytes. Records are read by key,
// never by iterator: the root is rewritten with each change, and an iterator of Badger steps over all
// versions that are still in memory.
//
//	record  key after the base of the set    value
//	root    0                                0 and the members, or 1 and the children
//	mid     1, number >> 17                  the children
//	leaf    2, number >> 10                  16 words of 64 bits, little endian, without zero bytes at the end
//
// Members and children are in ascending order, each as its uvarint difference from the previous one. The total of a child, a
// uvarint, follows its position. Positions in keys have 8 bytes, big endian.
package rankset
