package eventlog

import "time"

// forgetTry makes the next attempt after a temporary error possible at once.
func (l *Log) forgetTry() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tried = time.Time{}
}

func afterRetry() <-chan time.Time { return time.After(retryEvery) }
