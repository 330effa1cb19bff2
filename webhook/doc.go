// Package webhook delivers the events of accounts to the webhooks of the accounts, as Standard Webhooks describes: https://www.standardwebhooks.com.
//
// An event waits in the store until its delivery has ended. A [Deliverer] sends each event at least once: it stores the result after the answer, so
// a crash in between repeats the request, with the same id. Of several processes that share a store, the holder of a lease delivers.
//
//	Service.PutEvents ──► store ──► Deliverer: a queue for each webhook ──► Sender ──► the receiver
//	                                    ▲────────── Service.EndAttempt ◄───────┘
package webhook
