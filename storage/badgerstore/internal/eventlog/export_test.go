package eventlog

import "time"

// forgetTry lets the next attempt after a temporary error be made at once.
func (l *Log) forgetTry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried = time.Time{}
}

func afterRetry() <-chan time.Time { return time.After(retryEvery) }
