package badgerstore

// step is a moment in the life of a store at which a test may end the process.
type step uint8

const (
	stepFold      step = iota // the counters are about to be folded
	stepPages                 // pages of them are about to be committed
	stepFolded                // all pages are committed, the mark is not
	stepMarked                // the mark is
	stepExpire                // a segment is about to be removed
	stepReplay                // an event was read while the store is opened
	stepCommit                // a transaction of badger is about to be committed
	stepCommitted             // it is
	steps
)

// never is what a store does at a step when no test has an interest.
func never(step) {}
